"""The size of blocks in these tests: small, so that small files have several."""

BLOCK_BYTES = 16384
