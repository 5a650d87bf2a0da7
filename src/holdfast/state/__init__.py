"""Where values live: stores, key groups, codecs, and the states over them."""
