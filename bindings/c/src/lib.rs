//! The C API: libzazen and zazen.h
