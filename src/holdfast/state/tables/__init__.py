"""State as ordinary Parquet tables: the canonical form of savepoints.

Any reader of Parquet opens them and needs no Holdfast for it. They do not depend on the state
backend, and they are exact: a store that is restored from them holds what the other one held.

    keyed_states.parquet           what there is: table, name, kind, rows
    keyed/<state>.parquet          a state; <state>.ttl.parquet if its entries have times
    timers/<event|processing>.parquet
    without_keys/...               the same, of a subtask that never had a key: without rows

    operator_states.parquet        the same for the state of a subtask, in a directory of its own
    operator/<state>.parquet       a list or a broadcast map
    raw/partitions.parquet         raw operator state
    raw/key_groups.parquet         raw keyed state

Columns of a keyed state, in this order; a table has those that its kind, or a row, needs:

    key_group       int32
    key             by the type of the keys; a struct of _1, _2, ... for a tuple
    window_start    timestamp[ms, UTC]; null outside of time windows
    window_end
    namespace       binary; other windows than those of time; null for none
    position        int64, of a list: 0, 1, 2, ... within the list of a key
    map_key         of a map, by its type; null for None, and beside `map_key_encoded`
    map_key_encoded binary, null beside a `map_key`
    last_access     timestamp[ms, UTC], of a state with a time to live; null if it is not known
    last_access_ms  int64, in place of a `last_access` beyond the years 1 to 9999
    value           by the type of the state
    encoded         binary: the stored bytes, where a `value` would not give them back; else null

Timers have `key_group`, `timestamp` (and `timestamp_ms` in place of it, as above), `key` and
the columns of the namespace. A None in a map, or of a time to live, is a null in both `value`
and `encoded`. Rows lie in the order of the store, which is that of the bytes of its keys.

Every file describes itself: under "holdfast" its metadata has, in JSON,

    {"format": 1, "store_format": 1, "version": "7-ab", "max_parallelism": 128, "key": "str",
     "state": {"name": "count", "id": 1, "kind": "value", "schema": [...]}}

where `state` is all that the store knows of it (`state/catalog.py`). The chunks of lists are not
kept: a list that is read again is in chunks of epoch 0, before all that will be appended.
"""
