/* Everything that a plug-in can do, and all that it should not: what test_host.py drives in each
 * placement.
 */
#ifndef TRIAL_H
#define TRIAL_H

#include <stddef.h>
#include <stdint.h>

struct zazen_host;
struct zazen_caller;
struct trial_point {
    int32_t x, y;
};

/* START-ZAZEN-SCANNER ID=78 INIT=trial_init FINI=trial_fini ATTACH=trial_attach DETACH=trial_detach */

int trial_init(const struct zazen_host *host);
void trial_fini(void);
void trial_attach(const struct zazen_caller *caller);
void trial_detach(const struct zazen_caller *caller, int32_t reason);

/* idempotent */
int trial_add(int a /* in:obj */, int b /* in:obj */);
/* errno */
int trial_fail(int number /* in:obj */);
int trial_upper(const char *text /* in:str */, char *upper /* out:str:max=64 */);
struct trial_point trial_swap(struct trial_point point /* in:obj */);

/* Copies, by message and by segment. */
int trial_copy(const void *from /* in:arr:size=+2 */, void *to /* out:arr:size=+1 */,
               size_t bytes /* in:obj */);
int trial_echo(const void *from /* in:arr:size=+2:zerocopy */, void *to /* out:arr:size=+1:zerocopy */,
               size_t bytes /* in:obj */);
/* Turns each line round; the k-th result has k bytes less. */
int trial_lines(const void **from /* in:arr2d:size=+1:zerocopy */, const uint64_t *bytes /* in:arr:size=+3 */,
                void **to /* out:arr2d:size=+1:zerocopy */, uint64_t *room /* inout:arr:size=+1 */,
                int count /* in:obj */);
/* The sum of what came in the plug-in's own buffer, and a pattern out of one. */
uint64_t trial_sum(const void *bytes /* in:arr:size=+1:zerocopy:userbuf */, uint64_t count /* in:obj */);
int trial_pattern(void *bytes /* out:arr:size=+1:zerocopy:userbuf */, uint64_t *count /* inout:ptr */);

/* handle=box */
int trial_box(int value /* in:obj */);
int trial_unbox(int box /* in:obj:handle=box */);
int trial_drop(int box /* in:obj:handle=box:close */);

/* Descriptors there and back; not between nodes. */
int64_t trial_file_bytes(int file /* in:obj:fd */);
/* fd */
int trial_pipe(const char *text /* in:str */);

/* oneway */
void trial_note(int number /* in:obj */);

/* Who asks: pid, uid, rank and ranks; the client's number is the result. */
uint64_t trial_who(uint32_t *pid /* out:ptr */, uint32_t *uid /* out:ptr */, int32_t *rank /* out:ptr */,
                   int32_t *ranks /* out:ptr */, uint64_t *generation /* out:ptr */,
                   char *host /* out:str:max=256 */);
/* inits, attached, detached, last reason, completions, last one's status, notes, pid of the
 * plug-in. */
void trial_counts(int32_t *counts /* out:arr:size=+1 */, uint32_t count /* in:obj */);

/* 1: more than there is room for; 2: a negative length; 3: no NUL; 4: no registered buffer. */
int trial_lie(int how /* in:obj */, char *text /* out:str:max=8 */, uint32_t *values /* out:arr:size=+1 */,
              int *count /* inout:ptr */);
int trial_lie_stream(int how /* in:obj */, void *bytes /* out:arr:size=+1:zerocopy:userbuf */,
                     uint64_t *count /* inout:ptr */);

/* segv, abort, exit, _exit, kill, stack, hang, sleep; and what it could tell the daemon in its
 * process's name: nonsense, half (a message), babble (without end). */
int trial_die(const char *how /* in:str */);
/* Takes memory, and touches it, or descriptors, until there is no more, or so much. */
int64_t trial_leak(const char *what /* in:str */, uint64_t units /* in:obj */);

/* Waits until it is told to end. */
/* blocking errno */
int trial_block(void);

#endif
