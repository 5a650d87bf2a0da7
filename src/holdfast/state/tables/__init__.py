"""State as Parquet tables: the canonical format of savepoints.

Any Parquet reader can open them, without Holdfast. They are independent of the state backend
and exact: a store restored from them has the entries of the original.

    keyed_states.parquet           index: table, name, kind, rows
    keyed/<state>.parquet          a state; <state>.ttl.parquet if it has TTL
    timers/<event|processing>.parquet
    without_keys/...               the same, for a subtask that never had a key: no rows

    operator_states.parquet        index of operator state, in a separate directory
    operator/<state>.parquet       a list or a broadcast map
    raw/partitions.parquet         raw operator state
    raw/key_groups.parquet         raw keyed state

Columns of a keyed state, in this order; a table has those that its kind or its rows need:

    key_group       int32
    key             by the type of the keys; a struct of _1, _2, ... for a tuple
    window_start    timestamp[ms, UTC]; null outside of time windows
    window_end
    namespace       binary; windows other than time windows; null for none
    position        int64, of a list: 0, 1, 2, ... within the list of a key
    map_key         of a map, by its type; null for None, or if it cannot represent the key
    map_key_encoded binary: the stored bytes, if they do not come back from `map_key`; else null
    last_access     timestamp[ms, UTC], of a state with TTL; null if unknown
    last_access_ms  int64, instead of a `last_access` outside the years 1 to 9999
    value           by the type of the state; null if it cannot represent the value
    encoded         binary: the stored bytes, if they do not come back from `value`; else null

Timers have `key_group`, `timestamp` (or `timestamp_ms`, as above), `key` and the columns of the
namespace. None as a value of a map or of a state with TTL is null in both `value` and
`encoded`. Rows have the order of the store's keys, by their bytes.

Tables of operator state have `subtask` (int32, for other programs), then `position`, or
`map_key` and `map_key_encoded`, then `value` and `encoded`. Those of raw state have `subtask`,
then `position` or `key_group`, then `data`.

A reader takes the stored bytes where they are, else what is in the typed column. Both are set
where the column shows an equal value with other bytes: a datetime of another zone in UTC, or
the decimal "1.1" among others with two digits (`decimals.py`). Of optional columns, a table
has those that a row needs: those of windows and namespaces, `..._ms` and `...encoded`.

Every file describes itself. Its metadata has, under "holdfast" and in JSON,

    {"format": 2, "store_format": 1, "version": "7-ab", "max_parallelism": 128, "key": "str",
     "state": {"name": "count", "id": 1, "kind": "value", "schema": [...]},
     "digits": {"value": [2]}}

where `state` is its catalog entry (`state/catalog.py`), and `digits` are those of the decimals
in each column, if there are any. The chunks of lists are not preserved: a restored list has
chunks of epoch 0, before all later ones.

Format 1 is still read. There, decimals without a declared scale were text, `encoded` and
`map_key_encoded` were in all tables and only set where the typed column was null, and there was
no `subtask`.

Not here: which savepoint a table belongs to (`checkpoint.savepoint`).
Imports: `serde`, `types`.
"""
