/* stream.h: samples of telescopes as calls: the stream plug-in's interface. docs/streams.md says
 * how to use it.
 *
 * Receivers in the plug-in put what stations send into a circular buffer. Ranks take blocks of
 * it in turns (stream_scatter), and give results back (stream_gather), which are summed here
 * over many blocks before they leave for a file or a socket. The pattern is that of the LOFAR
 * correlator on ZOID (PPoPP'08, section 4).
 *
 * A stream has a name. One client opens it, others attach; each gets a handle. When the last of
 * them has closed its handle or is gone, the stream ends. Clients of one user share streams;
 * nobody else's are visible (but to root).
 *
 * Functions return -1 with errno set when they fail. Handles may be used by many threads. */
#ifndef ZAZEN_STREAM_H
#define ZAZEN_STREAM_H

#include <stddef.h>
#include <stdint.h>

struct zazen_host;
struct zazen_caller;

/* The blocks of an observation begin with that of the first packet. */
#define STREAM_FIRST_SEEN UINT64_MAX
/* No end but what the stations say. */
#define STREAM_UNBOUNDED UINT64_MAX

enum stream_input {
    STREAM_UDP = 0,         /* stations send datagrams to `port` and following ones */
    STREAM_TCP_LISTEN = 1,  /* somebody connects to `port` and sends packets one after the other */
    STREAM_TCP_CONNECT = 2  /* the same, from there */
};

enum stream_deal {
    STREAM_TURNS = 0, /* block b to rank b mod ranks; a rank hears of dropped ones */
    STREAM_FREE = 1   /* the oldest ready block to whoever asks */
};

enum stream_pressure {
    STREAM_DROP_OLDEST = 0, /* a full buffer drops its oldest block */
    STREAM_WAIT = 1         /* a full buffer makes the sender wait: TCP only */
};

enum stream_element { STREAM_F32 = 0, STREAM_F64 = 1, STREAM_I32 = 2, STREAM_I64 = 3 };

/* All of it travels: clear it first. */
struct stream_config {
    uint32_t stations;
    uint32_t station_first;  /* the number of the first one in packets' headers */
    uint32_t subbands;
    uint32_t sample_bytes;   /* of one subband at one time: 2 or 4 for complex int8 or int16, or anything */
    uint32_t packet_samples; /* times in a packet: it has packet_samples x subbands samples */
    uint32_t block_packets;  /* packets of each station in a block */
    uint32_t slots;          /* blocks in the buffer; 0: as buffer_ms and sample_rate say */
    uint32_t buffer_ms;
    double sample_rate;      /* times per second; used for the above only */
    uint64_t block_first;    /* STREAM_FIRST_SEEN or a number: time / (packet_samples x block_packets) */
    uint64_t block_count;    /* STREAM_UNBOUNDED or a number */
    uint32_t ranks;
    uint32_t deal;           /* enum stream_deal */
    uint32_t pressure;       /* enum stream_pressure */
    uint32_t deadline_ms;    /* an incomplete block is ready so long after it began to fill */
    uint32_t silence_ms;     /* nothing from any station for so long is the end; 0: never */
    uint32_t tag;            /* packets with another tag are none of ours */
    uint32_t input;          /* enum stream_input */
    uint32_t port;           /* 0: any, see stream_ports() */
    uint32_t ports;          /* UDP: this and following ones, a receiver thread each; 0 means 1 */
    uint32_t receive_bytes;  /* the sockets' buffers; 0: 64 MiB */
    uint32_t integrate;      /* results of so many blocks that follow each other are summed; 0 means 1 */
    uint32_t element;        /* enum stream_element */
    uint32_t groups_open;    /* a part's sums under way; 0 means 4; the oldest leaves for a new one */
    uint32_t reserved;
    char address[64];        /* to listen on, empty: 127.0.0.1; or to connect to. Numbers, no names */
};

/* What a block is. */
struct stream_block {
    uint64_t block;          /* number since the beginning of time */
    uint64_t index;          /* since the first block */
    uint64_t time;           /* number of its first sample */
    uint32_t is_dropped;     /* it was dropped: no samples, and result 0 bytes */
    uint32_t packets_missing;
    uint64_t bytes;
};

/* stream_counters(): numbers in this order; then STREAM_STATION_COUNTERS for each station. */
enum stream_counter {
    STREAM_BLOCK_FIRST, STREAM_BLOCK_BASE, STREAM_BLOCK_NEXT, STREAM_BLOCK_LIMIT,
    STREAM_BLOCKS_DELIVERED, STREAM_BLOCKS_INCOMPLETE, STREAM_BLOCKS_DROPPED, STREAM_BLOCKS_REDEALT,
    STREAM_GAPS_TOLD, STREAM_GAPS_FORGOTTEN,
    STREAM_FOREIGN,          /* datagrams that are no packets of this stream's stations */
    STREAM_KERNEL_DROPS,     /* datagrams that the kernel had no room for */
    STREAM_RECEIVES,         /* system calls that brought something */
    STREAM_BYTES_IN,         /* of packets, headers included */
    STREAM_BYTES_SCATTERED, STREAM_BYTES_GATHERED, STREAM_BYTES_STORED,
    STREAM_RESULTS, STREAM_RESULTS_ADDED, STREAM_RESULTS_SKIPPED, STREAM_RESULTS_DUPLICATE,
    STREAM_RESULTS_LATE,
    STREAM_RESULTS_UNFIT, STREAM_GROUPS, STREAM_GROUPS_INCOMPLETE, STREAM_GROUPS_OPEN,
    STREAM_GROUPS_LOST,      /* storage failed for them */
    STREAM_RECEIVER_CPU_NS,  /* of the receivers' threads */
    STREAM_RECEIVE_BYTES,    /* the sockets' buffer as granted, the smallest */
    STREAM_STATIONS,
    STREAM_COUNTERS
};

/* Packets of one station. arrived = stored + duplicate + late + refused + outside + strange, and
 * of the blocks that are done: block_packets x blocks = delivered + dropped + missing. */
enum stream_station_counter {
    STREAM_ARRIVED, STREAM_STORED, STREAM_DUPLICATE, STREAM_LATE, STREAM_REFUSED,
    STREAM_OUTSIDE, STREAM_STRANGE,
    STREAM_DELIVERED, STREAM_DROPPED, STREAM_MISSING, STREAM_ENDED,
    STREAM_STATION_COUNTERS
};

/* START-ZAZEN-SCANNER ID=17 INIT=stream_init FINI=stream_fini ATTACH=stream_attached DETACH=stream_detached */

int stream_init(const struct zazen_host *host);
void stream_fini(void);
void stream_attached(const struct zazen_caller *caller);
void stream_detached(const struct zazen_caller *caller, int32_t reason);

/* Makes a stream and begins to receive. EEXIST: the name is taken; EINVAL: measures; ENOMEM:
 * more than this host's bound for buffers. */
/* errno handle=stream */
int64_t stream_open(const char *name /* in:str:max=128 */, const struct stream_config *config /* in:ptr */);

/* A handle on a stream that is open; as this rank, unless rank is -1. A rank counts as gone when
 * its last handle is closed, and may come again. ENOENT; EINVAL: no such rank. */
/* errno handle=stream */
int64_t stream_attach(const char *name /* in:str:max=128 */, int32_t rank /* in:obj */);

/* errno */
int stream_close(int64_t stream /* in:obj:handle=stream:close */);

/* How the stream was opened. */
/* errno */
int stream_describe(int64_t stream /* in:obj:handle=stream */, struct stream_config *config /* out:ptr */);

/* The ports that are listened on; returns how many. */
/* errno */
int stream_ports(int64_t stream /* in:obj:handle=stream */, uint16_t *ports /* out:arr:size=+1:max=1024 */,
                 uint32_t *count /* inout:ptr */);

/* The next block for this rank: per station its packets in the order of their time, zeros for
 * what is missing. `present` has a bit for each packet, station x block_packets + packet, the
 * lowest bit first. `bytes` is room on entry. Returns 1, or 0 at the end of the stream. EAGAIN:
 * nothing within timeout_ms (-1: wait for ever); ENOBUFS: too little room; EINVAL: blocks are
 * dealt in turns and this handle is no rank's; EINTR. */
/* errno blocking */
int stream_scatter(int64_t stream /* in:obj:handle=stream */, int32_t timeout_ms /* in:obj */,
                   struct stream_block *block /* out:ptr */,
                   uint8_t *present /* out:arr:size=+1:max=1048576 */,
                   uint32_t *present_bytes /* inout:ptr */,
                   void *samples /* out:arr:size=+1:zerocopy:userbuf */,
                   uint64_t *bytes /* inout:ptr */);

/* The buffer itself, to be mapped for reading, and to be closed. Its bytes are those of blocks
 * as long as they are borrowed. Between nodes there is none. */
/* errno fd */
int stream_memory(int64_t stream /* in:obj:handle=stream */);

/* As stream_scatter(), but the block stays where it is: `offset` bytes from the beginning of
 * stream_memory(). It is this handle's until stream_return(); if the handle is closed or its
 * client gone before, the block is dealt again. */
/* errno blocking */
int stream_borrow(int64_t stream /* in:obj:handle=stream */, int32_t timeout_ms /* in:obj */,
                  struct stream_block *block /* out:ptr */,
                  uint8_t *present /* out:arr:size=+1:max=1048576 */,
                  uint32_t *present_bytes /* inout:ptr */, uint64_t *offset /* out:ptr */);

/* The block is not looked at any more: its place is used again. EINVAL: it was not borrowed
 * through this handle. */
/* errno */
int stream_return(int64_t stream /* in:obj:handle=stream */, uint64_t block /* in:obj */);

/* The result for a block; `weight` is summed too. Returns 1 when it is in its sum and, if that
 * was the last one, the sum waits for storage; 0 if there was one of this block and part
 * already, or its sum has left. EINVAL: no whole elements, another length than the sum's others,
 * or a block before the first. ENOMEM: beyond the host's bound. */
/* errno blocking */
int stream_gather(int64_t stream /* in:obj:handle=stream */, uint64_t block /* in:obj */,
                  uint32_t part /* in:obj */, uint64_t weight /* in:obj */,
                  const void *result /* in:arr:size=+1:zerocopy:userbuf:max=268435456 */,
                  uint64_t bytes /* in:obj */);

/* There will be no result of this block and part. */
/* errno blocking */
int stream_skip(int64_t stream /* in:obj:handle=stream */, uint64_t block /* in:obj */,
                uint32_t part /* in:obj */);

/* Where sums go from now on: into this file or socket, as records; -1: nowhere, they are only
 * counted. */
/* errno */
int stream_store(int64_t stream /* in:obj:handle=stream */, int fd /* in:obj:fd */);

/* The same, to a file of the host's (of its own user's callers only), or to a TCP port:
 * "tcp:ADDRESS:PORT". */
/* errno blocking */
int stream_store_at(int64_t stream /* in:obj:handle=stream */, const char *where /* in:str:max=4096 */);

/* Nothing more will come: what is in the buffer is still dealt. */
/* errno */
int stream_end(int64_t stream /* in:obj:handle=stream */);

/* Sums under way leave as they are; returns when storage has everything. EIO: it failed for
 * some. */
/* errno blocking */
int stream_flush(int64_t stream /* in:obj:handle=stream */);

/* See enum stream_counter; returns how many there are. */
/* errno */
int stream_counters(int64_t stream /* in:obj:handle=stream */,
                    uint64_t *values /* out:arr:size=+1:max=65536 */,
                    uint32_t *count /* inout:ptr */);

/* END-ZAZEN-SCANNER */

#endif
