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
    map_key         of a map, by its type; null for None, or if `map_key_encoded` is set
    map_key_encoded binary; null if `map_key` is set
    last_access     timestamp[ms, UTC], of a state with TTL; null if unknown
    last_access_ms  int64, instead of a `last_access` outside the years 1 to 9999
    value           by the type of the state
    encoded         binary: the stored bytes, if `value` cannot represent them; else null

Timers have `key_group`, `timestamp` (or `timestamp_ms`, as above), `key` and the columns of the
namespace. None as a value of a map or of a state with TTL is null in both `value` and
`encoded`. Rows have the order of the store's keys, by their bytes.

Every file describes itself. Its metadata has, under "holdfast" and in JSON,

    {"format": 1, "store_format": 1, "version": "7-ab", "max_parallelism": 128, "key": "str",
     "state": {"name": "count", "id": 1, "kind": "value", "schema": [...]}}

where `state` is its catalog entry (`state/catalog.py`). The chunks of lists are not preserved:
a restored list has chunks of epoch 0, before all later ones.

Not here: which savepoint a table belongs to (`checkpoint.savepoint`).
Imports: `serde`, `types`.
"""
