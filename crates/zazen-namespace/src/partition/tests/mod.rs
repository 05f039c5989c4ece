//! Tests of a partition, alone and with others.

mod semantics;
