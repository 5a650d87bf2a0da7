"""Settings: Flink's keys, parsed once into frozen values.

Options are declared beside the settings that they fill. No layer reads raw keys, except through
`Configuration`.

Not here: acting on a setting.
Imports: nothing but errors.
"""
