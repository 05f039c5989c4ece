// zazen.h: read frames of scientific datasets from the disks of the nodes that compute on them, and
// push frames to these disks.
//
// A call that can fail returns ZAZEN_OK or a negative status. zazen_last_error() then names the
// object, the limit and the next step. A call that fails changes nothing, neither its out
// parameters nor its object, unless its comment says otherwise. Structs begin with struct_size,
// their sizeof. Zero in a field means the default, so `= {.struct_size = sizeof x}` is enough. The
// caller owns what a call returns, and frees it with the function that its comment names. A string
// belongs to the object that it comes from. Several threads may use an object unless its comment
// says otherwise. Do not free an object while another thread uses it.

#ifndef ZAZEN_H
#define ZAZEN_H

/* Generated from the Rust sources by `ZAZEN_UPDATE_HEADER=1 cargo test -p zazen-c`: do not edit. */

#include <stddef.h>
#include <stdint.h>

// Where a frame came from.
enum zazen_source_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // From the node's cache, pushed there by a writer.
  ZAZEN_NATIVE = 0,
  // From the node's cache, brought there by an earlier miss.
  ZAZEN_ALIEN = 1,
  // From the backing store, through the daemon.
  ZAZEN_BACKING = 2,
  // From the backing store, without a daemon.
  ZAZEN_DIRECT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum zazen_source_t zazen_source_t;
#else
typedef int32_t zazen_source_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The result of a call: ZAZEN_OK or a negative status. New ones may be added: treat an unknown
// negative value as an error.
enum zazen_status_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It worked.
  ZAZEN_OK = 0,
  // The call asks for something that cannot be: fix the call.
  ZAZEN_INVALID_ARGUMENT = -1,
  // The named object does not exist.
  ZAZEN_NOT_FOUND = -2,
  // The caller may not do this with this object.
  ZAZEN_PERMISSION_DENIED = -3,
  // A different object already has this name or number.
  ZAZEN_CONFLICT = -4,
  // A disk, budget or quota is full.
  ZAZEN_NO_SPACE = -5,
  // A daemon, node or backing store does not answer: start it, or wait.
  ZAZEN_UNAVAILABLE = -6,
  // An answer did not come in time.
  ZAZEN_TIMED_OUT = -7,
  // Stored bytes do not match their checksum, or a stored record is damaged.
  ZAZEN_CORRUPT = -8,
  // A peer broke the protocol.
  ZAZEN_PROTOCOL = -9,
  // The cluster key is missing or wrong.
  ZAZEN_AUTHENTICATION = -10,
  // A size, count or number is beyond its limit.
  ZAZEN_TOO_LARGE = -11,
  // In use, or at the limit of callers: try again.
  ZAZEN_BUSY = -12,
  // This build, file system or peer version cannot do it.
  ZAZEN_UNSUPPORTED = -13,
  // The source changed after the copy was made.
  ZAZEN_STALE = -14,
  // The daemon is draining and takes no new work.
  ZAZEN_SHUTTING_DOWN = -15,
  // The device or the kernel reported a failure.
  ZAZEN_IO = -16,
  // MPI or the caller's own collectives failed, or each rank is an MPI world of its own.
  ZAZEN_MPI = -17,
  // The configuration is wrong: fix the file or option that the message names.
  ZAZEN_CONFIG = -18,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum zazen_status_t zazen_status_t;
#else
typedef int32_t zazen_status_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How files are given to ranks.
enum zazen_strategy_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // No map reads fewer files remotely.
  ZAZEN_MATCH_OPTIMAL = 0,
  // File i goes to rank i mod ranks.
  ZAZEN_MATCH_BLIND = 1,
  // Files in a drawn order, each to a drawn holder with room.
  ZAZEN_MATCH_FIRST_COME = 2,
  // VisIO: the file with the fewest holders left is next, and goes to the first of them.
  ZAZEN_MATCH_SCARCEST = 3,
  // The same, to the holder that the fewest other files ask for.
  ZAZEN_MATCH_LEAST_DEMAND = 4,
  // Every held file is read at a holder, and the ranks' bytes are balanced.
  ZAZEN_MATCH_BYTES = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum zazen_strategy_t zazen_strategy_t;
#else
typedef int32_t zazen_strategy_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An opened dataset. Threads may share it; calls run one after the other. A forked child may use
// it, over connections of its own.
typedef struct zazen_dataset_t zazen_dataset_t;

// An open file of the namespace. Threads may share it. A forked child must open it again.
typedef struct zazen_file_t zazen_file_t;

// A frame in memory. Threads may share it; its bytes live until zazen_frame_free.
typedef struct zazen_frame_t zazen_frame_t;

// An iteration over frames with read-ahead. Threads may share it; calls run one after the other.
// In a forked child it fails; begin another iteration there.
typedef struct zazen_frames_t zazen_frames_t;

// The namespace, through a daemon. Threads may share it. A forked child may use it, over
// connections of its own.
typedef struct zazen_namespace_t zazen_namespace_t;

// An iteration over the paths of frames. One thread at a time. In a forked child it fails; begin
// another iteration there.
typedef struct zazen_paths_t zazen_paths_t;

// An iteration over the runs of a set. One thread at a time.
typedef struct zazen_runs_t zazen_runs_t;

// An immutable set of frame numbers, held as runs. Threads may share it.
typedef struct zazen_runset_t zazen_runset_t;

// A writer into the caches of many nodes. Threads may share it.
typedef struct zazen_writer_t zazen_writer_t;

// The numbers first, first + step, … (count of them); count and step are at least 1.
typedef struct zazen_run_t {
  // The first number.
  uint64_t first;
  // How many.
  uint64_t count;
  // The distance between neighbours.
  uint64_t step;
} zazen_run_t;

// How to open a dataset; zero in a field means the default.
typedef struct zazen_open_options_t {
  // sizeof(zazen_open_options_t).
  size_t struct_size;
  // The daemon's socket; NULL: $ZAZEN_SOCKET or the default.
  const char *socket;
  // The pattern of file names, such as "frame-{n:07}.dcd"; NULL: from the manifest or the file
  // names.
  const char *pattern;
  // "tcp://host:port" of a served backing store to read when no daemon answers; NULL:
  // $ZAZEN_BACKING, or the dataset's directory itself.
  const char *backing;
  // Not 0: ask no daemon at all.
  uint64_t direct;
  // Milliseconds of silence after which a daemon is asked whether it is alive; 0:
  // $ZAZEN_TIMEOUT, or 10 000.
  uint64_t timeout_ms;
} zazen_open_options_t;

// Frames begin, begin + stride, … up to end, inclusive.
typedef struct zazen_range_t {
  // The first frame number.
  uint64_t begin;
  // The bound, inclusive.
  uint64_t end;
  // The distance between frame numbers; at least 1.
  uint64_t stride;
} zazen_range_t;

// How to assign; zero in a field means the default. Equal on all ranks.
typedef struct zazen_assign_options_t {
  // sizeof(zazen_assign_options_t).
  size_t struct_size;
  // 0: the full rules. 1: exactly the paper's (Zazen, FAST'10, section 4).
  uint64_t paper_rules;
  // 0: the owner-resolved protocol. 1: two all-reduces over bitmaps, as in the paper.
  uint64_t bitmap_protocol;
  // Not 0: assign all frames to this process, although a launcher has started several ranks.
  uint64_t alone;
} zazen_assign_options_t;

// Collective operations of the caller's ranks. zazen_mpi.h fills it from an MPI_Comm; programs
// without MPI fill it themselves.
//
// All functions are called on the thread that called zazen_assign, by all ranks in the same order.
// They block. Each returns 0, or a code of its own, which the error message repeats. After a
// failure the ranks are out of step, and the job should end. No function may call back into Zazen.
typedef struct zazen_collectives_t {
  // sizeof(zazen_collectives_t).
  size_t struct_size;
  // Passed to every function.
  void *context;
  // This rank, from 0.
  uint64_t rank;
  // How many ranks there are.
  uint64_t size;
  // Replaces `words` by their element-wise sums (wrapping) over all ranks; counts are equal.
  int32_t (*allreduce_sum)(void *context, uint64_t *words, uint64_t count);
  // Replaces `words` by their bitwise or over all ranks; counts are equal.
  int32_t (*allreduce_or)(void *context, uint64_t *words, uint64_t count);
  // Sends word j of `send` to rank j; `receive[j]` is what rank j sent here. One word per rank
  // each.
  int32_t (*alltoall)(void *context, const uint64_t *send, uint64_t *receive);
  // Sends `send_bytes[j]` bytes at `send[j]` to rank j and receives `receive_bytes[j]` from it
  // at `receive[j]`. Both sides know the lengths, which may be 0 (then the pointer may be NULL)
  // and may exceed 2^31. What a rank sends to itself has length 0.
  int32_t (*alltoallv)(void *context,
                       const void *const *send,
                       const uint64_t *send_bytes,
                       void *const *receive,
                       const uint64_t *receive_bytes);
  // Copies rank 0's `bytes` bytes at `buffer` to all ranks.
  int32_t (*broadcast)(void *context, void *buffer, uint64_t bytes);
  // Replaces `words` by their bitwise exclusive or over all ranks; counts are equal. May be
  // NULL, on all ranks or on none. If it is NULL, or missing in a table of an older program,
  // alltoall and alltoallv do its work.
  int32_t (*allreduce_xor)(void *context, uint64_t *words, uint64_t count);
  // Sends `send_bytes[i]` bytes at `send[i]` to rank `to[i]`, for each i below `count`. `to`
  // ascends and does not name this rank; no length is 0. For each block that another rank sends
  // here, calls `room(sink, from, bytes)` once and writes the block to the memory that it
  // returns. If that is NULL, there is no room, and the function fails. Ranks that have nothing
  // to say to each other should cost no message and no memory. May be NULL, on all ranks or on
  // none. If it is NULL, or missing in a table of an older program, alltoall and alltoallv do
  // its work, at 8 bytes or more for each rank.
  int32_t (*exchange)(void *context,
                      uint64_t count,
                      const uint64_t *to,
                      const void *const *send,
                      const uint64_t *send_bytes,
                      void *(*room)(void *sink, uint64_t from, uint64_t bytes),
                      void *sink);
} zazen_collectives_t;

// How the frames were assigned.
typedef struct zazen_assignment_t {
  // sizeof(zazen_assignment_t), set by the caller.
  size_t struct_size;
  // Frames of this rank that its node holds as natives,
  uint64_t native;
  // as aliens,
  uint64_t alien;
  // and that no node holds.
  uint64_t residue;
  // The same over all ranks.
  uint64_t total_native;
  // Aliens over all ranks.
  uint64_t total_alien;
  // Residue over all ranks.
  uint64_t total_residue;
  // Payload bytes that this rank sent.
  uint64_t bytes_sent;
  // Collective rounds.
  uint64_t rounds;
  // 1 if the fingerprint showed a perfect hit, 0 if holdings were exchanged.
  uint64_t perfect_hit;
} zazen_assignment_t;

// What is known of the trajectory files that hold a dataset's frames, as they were when it was
// opened. Frame n of the dataset has exactly the bytes of the n-th frame of the files, in their
// order. What the pointers lead to lives as long as the dataset.
typedef struct zazen_trajectory_t {
  // sizeof(zazen_trajectory_t), set by the caller.
  size_t struct_size;
  // "xtc", "trr", "dcd", "ncdf", "gro", "lammpstrj" or "xyz".
  const char *format;
  // Atoms in each frame.
  uint64_t atoms;
  // Whole frames in all files.
  uint64_t frames;
  // How many files there are; zazen_trajectory_file names each.
  uint64_t files;
  // How many things are wrong with them; zazen_trajectory_trouble names each.
  uint64_t troubles;
  // The bytes before the first frame of the first file, where a decoder needs them (DCD, AMBER
  // NetCDF); else NULL.
  const void *header;
  // How many bytes the header has.
  uint64_t header_bytes;
} zazen_trajectory_t;

// The version of a file; times are nanoseconds since the epoch.
typedef struct zazen_blocks_t {
  // sizeof(zazen_blocks_t), set by the caller.
  size_t struct_size;
  // Bytes of the file.
  uint64_t file_bytes;
  // When its bytes changed last.
  int64_t modified_ns;
  // When anything of it changed last.
  int64_t changed_ns;
  // Its inode.
  uint64_t inode;
} zazen_blocks_t;

// How to read; zero in a field means the default.
typedef struct zazen_read_options_t {
  // sizeof(zazen_read_options_t).
  size_t struct_size;
  // The most bytes that are read ahead (a single larger frame is still read); 0: 256 MiB.
  uint64_t memory_max;
  // Files in flight; 0: chosen for the node's disk.
  uint64_t readers;
  // Not 0: do not compare checksums.
  uint64_t unchecked;
  // Not 0: by ascending number, in about memory_max bytes. 0: in storage order, which is faster.
  uint64_t ordered;
} zazen_read_options_t;

// Where the frames taken so far came from.
typedef struct zazen_read_stats_t {
  // sizeof(zazen_read_stats_t), set by the caller.
  size_t struct_size;
  // From the cache as natives.
  uint64_t native;
  // From the cache as aliens that were there before.
  uint64_t alien;
  // Read from the backing store, by the daemon or directly.
  uint64_t backing_reads;
  // Bytes of all frames.
  uint64_t bytes;
  // Bad checksums that were found and repaired.
  uint64_t mended;
} zazen_read_stats_t;

// How to push; zero in a field means the default.
typedef struct zazen_writer_options_t {
  // sizeof(zazen_writer_options_t).
  size_t struct_size;
  // "host[:port],host[:port]…", or the path of a file with one node a line. Required.
  const char *nodes;
  // The cluster key file; NULL: $ZAZEN_KEY.
  const char *key;
  // The pattern for frames without a name, such as "frame-{n:07}.dcd".
  const char *pattern;
  // When the window is full: 0: skip the frame (the backing store has it). 1: wait.
  uint64_t block;
  // The most frames in flight; 0: 64.
  uint64_t window_frames;
  // The most bytes in flight; 0: 256 MiB.
  uint64_t window_bytes;
  // Milliseconds that a node may take for a frame before it counts as dead; 0: 10 000.
  uint64_t timeout_ms;
  // How many nodes get each frame; 0: one. The counters count each copy.
  uint64_t copies;
} zazen_writer_options_t;

// The number of frames with each fate. After zazen_writer_close, every submitted frame counts in
// exactly one of pushed, already_there, skipped_slow, skipped_no_node and refused.
typedef struct zazen_counters_t {
  // sizeof(zazen_counters_t), set by the caller.
  size_t struct_size;
  // Frames handed over.
  uint64_t submitted;
  // Stored by some node.
  uint64_t pushed;
  // Some node already had exactly this frame.
  uint64_t already_there;
  // The window was full, and the writer does not wait.
  uint64_t skipped_slow;
  // Every node was dead or full.
  uint64_t skipped_no_node;
  // A node refused the frame for good.
  uint64_t refused;
  // Sends repeated on another node.
  uint64_t resent;
  // Times a node was marked dead.
  uint64_t node_deaths;
  // Bytes of pushed frames.
  uint64_t bytes_pushed;
} zazen_counters_t;

// How good a matching is.
typedef struct zazen_matched_t {
  // sizeof(zazen_matched_t).
  size_t struct_size;
  // Files that their rank's node does not hold.
  uint64_t remote;
  // No map has fewer.
  uint64_t bound;
  // The most bytes that a rank reads.
  uint64_t bytes_max;
  // Bytes that a rank reads on average, rounded down.
  uint64_t bytes_mean;
  // In no map does every rank read fewer bytes.
  uint64_t bytes_bound;
} zazen_matched_t;

// Which daemon; zero in a field means the default.
typedef struct zazen_namespace_options_t {
  // sizeof(zazen_namespace_options_t).
  size_t struct_size;
  // The daemon's socket; NULL: $ZAZEN_SOCKET, or the default of this machine.
  const char *socket;
  // "host:port" of another node's daemon instead; needs `key`.
  const char *node;
  // The cluster key file, for `node`.
  const char *key;
} zazen_namespace_options_t;

// What is known of a file. Times are nanoseconds since the epoch.
typedef struct zazen_stat_t {
  // sizeof(zazen_stat_t), set by the caller.
  size_t struct_size;
  // The inode's number.
  uint64_t inode;
  // As st_mode: S_ISDIR and the like work on it.
  uint64_t mode;
  // Names that lead to it.
  uint64_t links;
  // Owner.
  uint64_t uid;
  // Group.
  uint64_t gid;
  // Bytes. The length of a file that is being written is asked of its holder.
  uint64_t bytes;
  // Units of 512 bytes on disk.
  uint64_t blocks;
  // When it was read last.
  int64_t accessed_ns;
  // When its bytes changed last.
  int64_t modified_ns;
  // When anything of it changed last.
  int64_t changed_ns;
  // The number of the node that holds its bytes; -1: none.
  int64_t node;
} zazen_stat_t;

// Gets one entry of a directory. `name` and `stat` are valid during the call. Any other result
// than 0 ends the listing.
typedef int (*zazen_entry_fn)(void *user, const char *name, const struct zazen_stat_t *stat);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Describes `status` in a few words. The string is static.
const char *zazen_strerror(int32_t status);

// The message of the last call that failed on this thread: object, limit and next step. Empty if
// no call failed. Valid until the next call fails on this thread.
const char *zazen_last_error(void);

// The library's version, such as "0.1.0". The string is static.
const char *zazen_version(void);

// Makes the union of `count` runs, in any order, overlapping or not. The caller frees `*set`.
//
// The caller sees to it that:
// `runs` points to `count` runs (or `count` is 0); `set` is writable.
int32_t zazen_runset_from_runs(const struct zazen_run_t *runs, size_t count, struct zazen_runset_t **set);

// How many numbers are in `set`; 0 for NULL.
//
// The caller sees to it that:
// `set` is NULL or live.
uint64_t zazen_runset_len(const struct zazen_runset_t *set);

// Whether `number` is in `set`: 1 or 0.
//
// The caller sees to it that:
// `set` is NULL or live.
int32_t zazen_runset_contains(const struct zazen_runset_t *set, uint64_t number);

// Writes the numbers from the `rank`-th smallest on (0 is the smallest) to `numbers`, at most
// `capacity` of them. Returns how many; fewer than `capacity` means that the set ends there.
//
// The caller sees to it that:
// `set` is NULL or live; `numbers` has room for `capacity`.
size_t zazen_runset_numbers(const struct zazen_runset_t *set,
                            uint64_t rank,
                            uint64_t *numbers,
                            size_t capacity);

// Makes the union of two sets. The caller frees `*set`.
//
// The caller sees to it that:
// `one` and `other` are NULL or live; `set` is writable.
int32_t zazen_runset_union(const struct zazen_runset_t *one,
                           const struct zazen_runset_t *other,
                           struct zazen_runset_t **set);

// Makes the set of the numbers that are in both sets. The caller frees `*set`.
//
// The caller sees to it that:
// `one` and `other` are NULL or live; `set` is writable.
int32_t zazen_runset_intersection(const struct zazen_runset_t *one,
                                  const struct zazen_runset_t *other,
                                  struct zazen_runset_t **set);

// Makes the set of the numbers of `one` that are not in `other`. The caller frees `*set`.
//
// The caller sees to it that:
// `one` and `other` are NULL or live; `set` is writable.
int32_t zazen_runset_difference(const struct zazen_runset_t *one,
                                const struct zazen_runset_t *other,
                                struct zazen_runset_t **set);

// Begins an iteration over the disjoint runs of `set`, ascending by first number; NULL for NULL.
// The caller frees the iteration, which stays valid after `set` is freed.
//
// The caller sees to it that:
// `set` is NULL or live.
struct zazen_runs_t *zazen_runset_runs(const struct zazen_runset_t *set);

// Writes the next run to `*run` and returns 1, or returns 0 at the end.
//
// The caller sees to it that:
// `runs` is NULL or live; `run` is writable.
int32_t zazen_runs_next(struct zazen_runs_t *runs, struct zazen_run_t *run);

// Ends an iteration over runs; NULL is ignored.
//
// The caller sees to it that:
// `runs` is NULL or live, and not used afterwards.
void zazen_runs_free(struct zazen_runs_t *runs);

// Frees a set; NULL is ignored.
//
// The caller sees to it that:
// `set` is NULL or live, and not used afterwards.
void zazen_runset_free(struct zazen_runset_t *set);

// Checks that MPI's world has the size that the launcher made. `world_size` is the size of
// MPI_COMM_WORLD. ZAZEN_MPI if the launcher started several ranks and each is a world of one; then
// each would read every frame. zazen_mpi.h calls this.
int32_t zazen_check_launcher(uint64_t world_size);

// Opens the dataset whose directory is `path`. `options` may be NULL. The caller closes
// `*dataset`.
//
// If no daemon answers, frames come from the backing store; see zazen_has_daemon. ZAZEN_NOT_FOUND
// if there is no such directory.
//
// The caller sees to it that:
// Strings are NUL-terminated; `options` is NULL or as large as it says; `dataset` is writable.
int32_t zazen_open(const char *path,
                   const struct zazen_open_options_t *options,
                   struct zazen_dataset_t **dataset);

// Closes a dataset. Frames and iterations obtained from it stay valid. NULL is ignored.
//
// The caller sees to it that:
// `dataset` is NULL or live, and not used afterwards.
void zazen_close(struct zazen_dataset_t *dataset);

// How the dataset's numbers map to files: "frame-{n:07}.dcd", "pieces of N files", "list of N
// files" or "xtc trajectory of N files". Writes at most `capacity` bytes to `text`, with a NUL at
// the end, and the length without it to `*length`; 0 if the layout is not known. ZAZEN_TOO_LARGE
// if it does not fit; `*length` is set.
//
// The caller sees to it that:
// `dataset` is NULL or live; `text` has room for `capacity` bytes, or is NULL if that is 0;
// `length` is writable.
int32_t zazen_layout(struct zazen_dataset_t *dataset, char *text, size_t capacity, size_t *length);

// Takes this process's oldest warning that was not taken: something that costs time but no
// results, such as a daemon that does not answer. The string is valid until this thread's next
// call. NULL if there is none.
const char *zazen_next_warning(void);

// Whether a daemon answered when the dataset was opened: 1 or 0.
//
// The caller sees to it that:
// `dataset` is NULL or live.
int32_t zazen_has_daemon(const struct zazen_dataset_t *dataset);

// The identity of the node whose daemon answered, a number of 128 bits that is the same in all
// processes of the node: `node[0]` has its low 64 bits, `node[1]` the high ones. Without a daemon:
// a random one, fixed for this dataset.
//
// The caller sees to it that:
// `dataset` is NULL or live; `node` has two writable elements.
int32_t zazen_node(struct zazen_dataset_t *dataset, uint64_t *node);

// The dataset's absolute path; NULL for NULL. Lives as long as the dataset.
//
// The caller sees to it that:
// `dataset` is NULL or live.
const char *zazen_path(const struct zazen_dataset_t *dataset);

// The frames that exist on the backing store; ZAZEN_UNAVAILABLE if it does not answer. The
// caller frees `*set`.
//
// The caller sees to it that:
// `dataset` is NULL or live; `set` is writable.
int32_t zazen_extent(struct zazen_dataset_t *dataset, struct zazen_runset_t **set);

// What this node's cache holds of `range` as natives and aliens (paper section 4: query). The
// caller frees both sets.
//
// The caller sees to it that:
// `dataset` is NULL or live; `range` is readable; `native` and `alien` are writable.
int32_t zazen_query(struct zazen_dataset_t *dataset,
                    const struct zazen_range_t *range,
                    struct zazen_runset_t **native,
                    struct zazen_runset_t **alien);

// Agrees with the other ranks on which rank reads which frame (paper section 4: zazen).
// Collective: every rank calls it with equal range and options.
//
// `range`: NULL for all frames that exist, as rank 0 sees them. `options`: NULL for the defaults.
// `collectives`: NULL assigns all frames to this process; if a launcher has started several ranks,
// options.alone must then be set. `assignment`: filled if not NULL. `*set`: the frame numbers that
// this rank reads. Every requested frame is in exactly one rank's set. The caller frees `*set`.
//
// The caller sees to it that:
// `dataset` is NULL or live; structs are NULL or as large as they say; `set` is writable.
int32_t zazen_assign(struct zazen_dataset_t *dataset,
                     const struct zazen_range_t *range,
                     const struct zazen_assign_options_t *options,
                     const struct zazen_collectives_t *collectives,
                     struct zazen_assignment_t *assignment,
                     struct zazen_runset_t **set);

// Describes the trajectory files that hold the dataset's frames. ZAZEN_NOT_FOUND if its frames are
// not those of trajectory files.
//
// The caller sees to it that:
// `dataset` is NULL or live; `trajectory` is as large as it says.
int32_t zazen_trajectory(struct zazen_dataset_t *dataset, struct zazen_trajectory_t *trajectory);

// The absolute path of trajectory file `at`, from 0 on; NULL if there is none. Lives as long as
// the dataset.
//
// The caller sees to it that:
// `dataset` is NULL or live.
const char *zazen_trajectory_file(struct zazen_dataset_t *dataset, uint64_t at);

// What is wrong with the trajectory files, from 0 on, each with its file, frame and byte offset: a
// frame that is cut or still being written, or that is damaged. The frames before it are good.
// NULL if there is no more. Lives as long as the dataset.
//
// The caller sees to it that:
// `dataset` is NULL or live.
const char *zazen_trajectory_trouble(struct zazen_dataset_t *dataset, uint64_t at);

// Describes the version of the file whose blocks the dataset's frames are. Reads give ZAZEN_STALE
// once the file looks different. ZAZEN_NOT_FOUND if the frames are not the blocks of a file.
//
// The caller sees to it that:
// `dataset` is NULL or live; `blocks` is as large as it says.
int32_t zazen_blocks(struct zazen_dataset_t *dataset, struct zazen_blocks_t *blocks);

// Reads frame `number`, checked against its checksum. The caller frees `*frame`.
//
// The caller sees to it that:
// `dataset` is NULL or live; `frame` is writable.
int32_t zazen_read(struct zazen_dataset_t *dataset, uint64_t number, struct zazen_frame_t **frame);

// Begins to read the frames of `set` in storage order. `options` may be NULL. The caller closes
// `*frames`, which stays valid after `set` and `dataset` are freed.
//
// The caller sees to it that:
// `dataset` and `set` are NULL or live; `options` is NULL or as large as it says; `frames` is
// writable.
int32_t zazen_frames(struct zazen_dataset_t *dataset,
                     const struct zazen_runset_t *set,
                     const struct zazen_read_options_t *options,
                     struct zazen_frames_t **frames);

// The next frame, which the caller frees; `*frame` is NULL at the end. A failure concerns one
// frame; the iteration can continue.
//
// The caller sees to it that:
// `frames` is NULL or live; `frame` is writable.
int32_t zazen_next(struct zazen_frames_t *frames, struct zazen_frame_t **frame);

// Frames not yet taken; 0 for NULL.
//
// The caller sees to it that:
// `frames` is NULL or live.
uint64_t zazen_frames_remaining(const struct zazen_frames_t *frames);

// Where the frames taken so far came from.
//
// The caller sees to it that:
// `frames` is NULL or live; `stats` is as large as it says.
int32_t zazen_frames_stats(const struct zazen_frames_t *frames, struct zazen_read_stats_t *stats);

// Ends an iteration and its read-ahead. Frames taken from it stay valid. NULL is ignored.
//
// The caller sees to it that:
// `frames` is NULL or live, and not used afterwards.
void zazen_frames_close(struct zazen_frames_t *frames);

// The frame's number.
//
// The caller sees to it that:
// `frame` is NULL or live.
uint64_t zazen_frame_number(const struct zazen_frame_t *frame);

// The frame's bytes, read-only; NULL for NULL.
//
// The caller sees to it that:
// `frame` is NULL or live.
const void *zazen_frame_data(const struct zazen_frame_t *frame);

// How many bytes the frame has.
//
// The caller sees to it that:
// `frame` is NULL or live.
uint64_t zazen_frame_bytes(const struct zazen_frame_t *frame);

// Absolute path of a file with exactly the frame's bytes: in the cache if cached, else on the
// backing store. NULL only if there is none and none can be made. A frame that is a part of a
// larger file (see zazen_frame_container), or whose file this user may not open, gets a file at
// the first call. Path and file live as long as the frame.
//
// The caller sees to it that:
// `frame` is NULL or live.
const char *zazen_frame_path(const struct zazen_frame_t *frame);

// Absolute path of the larger file that the frame is a part of. The frame's offset in it goes to
// `*offset`; `offset` may be NULL. Returns NULL if the frame has a file of its own, or is in no
// file that this process may open. Lives as long as the frame.
//
// The caller sees to it that:
// `frame` is NULL or live; `offset` is NULL or writable.
const char *zazen_frame_container(const struct zazen_frame_t *frame, uint64_t *offset);

// Where the frame came from.
//
// The caller sees to it that:
// `frame` is NULL or live.
zazen_source_t zazen_frame_source(const struct zazen_frame_t *frame);

// Frees a frame and its bytes; NULL is ignored.
//
// The caller sees to it that:
// `frame` is NULL or live, and not used afterwards.
void zazen_frame_free(struct zazen_frame_t *frame);

// Begins to find the files of the frames of `set`, in storage order, without reading them: for
// programs that map large files, or hand their paths on. The caller closes `*paths`, which stays
// valid after `set` and `dataset` are freed.
//
// The caller sees to it that:
// `dataset` and `set` are NULL or live; `paths` is writable.
int32_t zazen_paths(struct zazen_dataset_t *dataset,
                    const struct zazen_runset_t *set,
                    struct zazen_paths_t **paths);

// The next frame's number and the absolute path of a file with exactly its bytes; `*path` is NULL
// at the end. The path is valid until the next call for `paths`, or until that is closed. A
// failure concerns one frame; the iteration can continue.
//
// `*frame` is NULL if the frame is a whole file: the cached one, or its source if it is not cached
// and cannot be. Its bytes were neither read nor checked. The cache may evict the file later; an
// open file stays readable. A frame that is a part of a larger file, or whose file this user may
// not open, is read, and its file lives as long as `*frame`, which the caller frees.
//
// The caller sees to it that:
// `paths` is NULL or live; `number`, `path` and `frame` are writable.
int32_t zazen_paths_next(struct zazen_paths_t *paths,
                         uint64_t *number,
                         const char **path,
                         struct zazen_frame_t **frame);

// Frames whose paths were not given yet; 0 for NULL.
//
// The caller sees to it that:
// `paths` is NULL or live.
uint64_t zazen_paths_remaining(const struct zazen_paths_t *paths);

// Ends an iteration over paths. NULL is ignored.
//
// The caller sees to it that:
// `paths` is NULL or live, and not used afterwards.
void zazen_paths_close(struct zazen_paths_t *paths);

// Reads the `count` frames `numbers` in one call, in any order, each as often as it is asked for.
// `frames[i]` is the frame `numbers[i]`; the caller frees each of them. At most 2^20 numbers.
//
// `statuses`: NULL, or the status of each frame; where it is not ZAZEN_OK, `frames[i]` is NULL. If
// `statuses` is NULL and a frame cannot be read, the call fails, names the frame and gives none.
//
// The caller sees to it that:
// `dataset` is NULL or live; `numbers` has `count` readable elements; `frames`, and `statuses` if
// it is not NULL, have `count` writable ones.
int32_t zazen_read_many(struct zazen_dataset_t *dataset,
                        const uint64_t *numbers,
                        uint64_t count,
                        struct zazen_frame_t **frames,
                        int32_t *statuses);

// The number of the frame whose file is `name`: a path relative to the dataset, or an absolute
// path. ZAZEN_NOT_FOUND if no frame has this name, ZAZEN_INVALID_ARGUMENT if the file holds
// several frames.
//
// The caller sees to it that:
// `dataset` is NULL or live; `name` is NUL-terminated; `number` is writable.
int32_t zazen_number_of(struct zazen_dataset_t *dataset, const char *name, uint64_t *number);

// Which node holds which of the frames that exist, at one moment. Collective; alike on all ranks.
// Nothing is read. A node whose daemon does not answer holds nothing.
//
// `ranks`: how many ranks there are, and how many elements the arrays have. `node_of_rank[r]`: the
// index of rank r's node. `held[i]`: the frames that node i holds, which the caller frees; NULL
// where there are fewer nodes than ranks. `collectives`: as for zazen_assign; NULL: this process
// alone, with one rank.
//
// The caller sees to it that:
// `dataset` is NULL or live; `collectives` is NULL or as large as it says; the arrays have `ranks`
// writable elements.
int32_t zazen_holders(struct zazen_dataset_t *dataset,
                      const struct zazen_collectives_t *collectives,
                      uint64_t ranks,
                      uint64_t *node_of_rank,
                      struct zazen_runset_t **held);

// For each frame that exists, in ascending order (see zazen_extent), the rank whose node holds it,
// and -1 if no node does. Collective. Nothing is read. A native counts before an alien. If several
// nodes hold a frame alike, the node with the fewest frames per rank so far owns it; ties go to
// the node of the lowest rank. The ranks of a node own its frames in contiguous blocks.
//
// `count`: how many frames exist, and how many elements `owners` has; ZAZEN_TOO_LARGE if there are
// others. `collectives`: as for zazen_assign; NULL: this process alone.
//
// The caller sees to it that:
// `dataset` is NULL or live; `collectives` is NULL or as large as it says; `owners` has `count`
// writable elements.
int32_t zazen_owners(struct zazen_dataset_t *dataset,
                     const struct zazen_collectives_t *collectives,
                     int32_t *owners,
                     uint64_t count);

// Opens a writer for the dataset at `dataset`, its absolute path as the readers write it. The
// writer connects when there is something to send. The caller closes `*writer`.
//
// The caller sees to it that:
// Strings are NUL-terminated; `options` is as large as it says; `writer` is writable.
int32_t zazen_writer_open(const char *dataset,
                          const struct zazen_writer_options_t *options,
                          struct zazen_writer_t **writer);

// Hands over frame `number`; its bytes are copied before the call returns. `name`: the file
// beneath the dataset that holds the frame; NULL: the name by the pattern.
//
// Returns at once, unless the window is full and the writer is set to wait. The counters show what
// happened to the frame.
//
// The caller sees to it that:
// `writer` is NULL or live; `data` has `bytes` readable bytes; `name` is NULL or NUL-terminated.
int32_t zazen_write(struct zazen_writer_t *writer,
                    uint64_t number,
                    const void *data,
                    uint64_t bytes,
                    const char *name);

// Waits until every frame that was handed over has its fate. The writer stays usable.
//
// The caller sees to it that:
// `writer` is NULL or live.
int32_t zazen_writer_drain(struct zazen_writer_t *writer);

// One of the last few failures, from 0 on: node, frame, reason; NULL if there are no more. Valid
// until this thread's next call for any writer. Ask before zazen_writer_close, behind
// zazen_writer_drain if all frames are meant.
//
// The caller sees to it that:
// `writer` is NULL or live.
const char *zazen_writer_problem(const struct zazen_writer_t *writer, uint64_t at);

// Fates so far.
//
// The caller sees to it that:
// `writer` is NULL or live; `counters` is as large as it says.
int32_t zazen_writer_counters(const struct zazen_writer_t *writer, struct zazen_counters_t *counters);

// Waits until every frame has its fate, fills `counters` if not NULL, and frees the writer. The
// writer must not be used afterwards. If `counters->struct_size` is wrong or the writer is NULL,
// the call fails and frees nothing. Any other failure frees the writer too.
//
// The caller sees to it that:
// `writer` is NULL or live; `counters` is NULL or as large as it says.
int32_t zazen_writer_close(struct zazen_writer_t *writer, struct zazen_counters_t *counters);

// Drops a writer without waiting: frames in flight may or may not arrive. NULL is ignored.
//
// The caller sees to it that:
// `writer` is NULL or live, and not used afterwards.
void zazen_writer_abandon(struct zazen_writer_t *writer);

// Gives each of `file_count` files to exactly one of `rank_count` ranks, and writes its rank to
// `rank_of_file`. Rank r runs on node `node_of_rank[r]`; nodes are any numbers. File f has
// `bytes_of_file[f]` bytes, and the nodes `holders[holders_begin[f]]` up to, but without,
// `holders[holders_begin[f + 1]]` hold it. `strategy` is a zazen_strategy_t; `seed` matters to
// ZAZEN_MATCH_FIRST_COME only. A rank gets at most ceil(files / ranks) files, but for
// ZAZEN_MATCH_BYTES. The result depends on the arguments only. `matched` may be NULL.
//
// The caller sees to it that:
// The arrays have `rank_count`, `file_count`, `file_count + 1` and `holders_begin[file_count]`
// elements, and `rank_of_file` has room for `file_count`.
int32_t zazen_match(const uint32_t *node_of_rank,
                    size_t rank_count,
                    const uint64_t *bytes_of_file,
                    const uint64_t *holders_begin,
                    const uint32_t *holders,
                    size_t file_count,
                    int32_t strategy,
                    uint64_t seed,
                    uint32_t *rank_of_file,
                    struct zazen_matched_t *matched);

// Connects to the namespace. The caller closes `*opened`.
//
// The caller sees to it that:
// Strings are NUL-terminated; `options` is NULL or as large as it says; `opened` is writable.
int32_t zazen_namespace_open(const struct zazen_namespace_options_t *options,
                             struct zazen_namespace_t **opened);

// Ends the connection. Open files stay usable. NULL is ignored.
//
// The caller sees to it that:
// `space` is NULL or live, and nobody uses it any more.
void zazen_namespace_close(struct zazen_namespace_t *space);

// The kernel's number (errno.h) of the last call on files that failed on this thread: EEXIST,
// ENOTEMPTY and the like, of which the status says less.
int zazen_last_errno(void);

// Opens a file. `flags`: as for open(2): one of O_RDONLY, O_WRONLY and O_RDWR, and any of O_CREAT,
// O_EXCL, O_TRUNC and O_APPEND. `mode`: the permission bits of a new file, after the umask. The
// caller closes `*opened`.
//
// The caller sees to it that:
// `space` is NULL or live; `path` is NUL-terminated; `opened` is writable.
int32_t zazen_file_open(struct zazen_namespace_t *space,
                        const char *path,
                        int flags,
                        uint32_t mode,
                        struct zazen_file_t **opened);

// Reads `bytes` bytes at `offset`. `*got`: how many; fewer only where the file ends.
//
// The caller sees to it that:
// `file` is NULL or live; `buffer` has `bytes` writable bytes; `got` is writable.
int32_t zazen_file_read(struct zazen_file_t *file, void *buffer, size_t bytes, uint64_t offset, size_t *got);

// Writes `bytes` bytes at `offset`, or at the file's end if it was opened with O_APPEND: all of
// them. After an error some of them may have been written.
//
// The caller sees to it that:
// `file` is NULL or live; `data` has `bytes` readable bytes.
int32_t zazen_file_write(struct zazen_file_t *file, const void *data, size_t bytes, uint64_t offset);

// Cuts or extends the file to `bytes` bytes.
//
// The caller sees to it that:
// `file` is NULL or live.
int32_t zazen_file_truncate(struct zazen_file_t *file, uint64_t bytes);

// Returns when the bytes are on the disk of the node that holds the file, and their length is
// known to all.
//
// The caller sees to it that:
// `file` is NULL or live.
int32_t zazen_file_sync(struct zazen_file_t *file);

// Closes and frees the file, also if it fails. When it returns ZAZEN_OK, what was written is known
// to all. NULL is ignored.
//
// The caller sees to it that:
// `file` is NULL or live, and nobody uses it any more.
int32_t zazen_file_close(struct zazen_file_t *file);

// What is known of the file at `path`; with `follow` not 0, of what a symbolic link there leads
// to.
//
// The caller sees to it that:
// `space` is NULL or live; `path` is NUL-terminated; `stat` is as large as it says.
int32_t zazen_namespace_stat(struct zazen_namespace_t *space,
                             const char *path,
                             int follow,
                             struct zazen_stat_t *stat);

// The same for `count` paths, following symbolic links, in few calls. `stats`: an array of `count`
// structs of this header's size. `errnos[i]`: 0, or why `stats[i]` was not filled.
//
// The caller sees to it that:
// `space` is NULL or live; `paths`, `stats` and `errnos` have `count` elements; each path is
// NUL-terminated.
int32_t zazen_namespace_stat_many(struct zazen_namespace_t *space,
                                  const char *const *paths,
                                  size_t count,
                                  struct zazen_stat_t *stats,
                                  int *errnos);

// Gives each entry of a directory to `entry`, without `.` and `..`, in no order. The listing is
// complete before the first call, so `entry` may change the directory.
//
// The caller sees to it that:
// `space` is NULL or live; `path` is NUL-terminated; `entry` does what its type says.
int32_t zazen_namespace_list(struct zazen_namespace_t *space,
                             const char *path,
                             zazen_entry_fn entry,
                             void *user);

// Makes `count` empty files in `directory`, up to 1,024 a call. `mode`: their permission bits,
// after the umask. `errnos[i]`: 0, or why `names[i]` was not made; NULL: the call fails if one of
// them was not made, and the others are made all the same.
//
// The caller sees to it that:
// `space` is NULL or live; `directory` and each name are NUL-terminated; `names`, and `errnos` if
// it is not NULL, have `count` elements.
int32_t zazen_namespace_create_many(struct zazen_namespace_t *space,
                                    const char *directory,
                                    const char *const *names,
                                    size_t count,
                                    uint32_t mode,
                                    int *errnos);

// Which node holds the bytes of the file at `path`. `node`: its number, -1 for a file that never
// had any. `host`: room for `host_bytes` bytes, for the name of its daemon's host; ZAZEN_TOO_LARGE
// if that does not fit.
//
// The caller sees to it that:
// `space` is NULL or live; `path` is NUL-terminated; `node` is NULL or writable; `host` is NULL or
// has `host_bytes` writable bytes.
int32_t zazen_namespace_locate(struct zazen_namespace_t *space,
                               const char *path,
                               int64_t *node,
                               char *host,
                               size_t host_bytes);

// Makes a directory. `mode`: its permission bits, after the umask.
//
// The caller sees to it that:
// `space` is NULL or live; `path` is NUL-terminated.
int32_t zazen_namespace_mkdir(struct zazen_namespace_t *space, const char *path, uint32_t mode);

// Removes a name, or an empty directory.
//
// The caller sees to it that:
// `space` is NULL or live; `path` is NUL-terminated.
int32_t zazen_namespace_remove(struct zazen_namespace_t *space, const char *path);

// Gives a file or directory another path, atomically. Replaces what is there, as rename(2) does.
//
// The caller sees to it that:
// `space` is NULL or live; both paths are NUL-terminated.
int32_t zazen_namespace_rename(struct zazen_namespace_t *space, const char *source, const char *target);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ZAZEN_H */
