//! MPI bound at run time, as a carrier of the assignment protocol
