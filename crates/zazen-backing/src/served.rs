//! A directory served over TCP at a bounded rate, and the backing that reads it. The testbed's stand-in for a slow
//! shared file server: no NFS server or client can be had there without root.
