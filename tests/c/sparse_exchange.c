// The sparse exchange of zazen_mpi.h: every rank checks what every other rank sent it, in many
// rounds, with blocks of several pieces and with none at all.

#define ZAZEN_MPI_PAIRWISE_RANKS_MAX 0
#define ZAZEN_MPI_BYTES_MAX ((uint64_t)4096)
#include <stdio.h>
#include <zazen_mpi.h>

#define RANKS_MAX 16

static struct {
    unsigned char *bytes;
    uint64_t length;
} inbox[RANKS_MAX];

static void *room(void *sink, uint64_t from, uint64_t bytes) {
    if (sink != inbox || from >= RANKS_MAX || inbox[from].bytes != NULL)
        return NULL;
    inbox[from].length = bytes;
    inbox[from].bytes = (unsigned char *)malloc(bytes);
    return inbox[from].bytes;
}

static uint64_t length(int from, int to, int round) {
    return from == to ? 0 : (uint64_t)((from * 7919 + to * 104729 + round * 31) % 5) * 5003;
}

static int fails(const char *what, int round) {
    fprintf(stderr, "%s in round %d\n", what, round);
    return 1;
}

int main(int argc, char **argv) {
    zazen_collectives_t table;
    MPI_Init(&argc, &argv);
    if (zazen_collectives_from_mpi(MPI_COMM_WORLD, &table) != ZAZEN_OK || table.exchange == NULL)
        return fails("no table", 0);
    int rank = (int)table.rank, size = (int)table.size;
    for (int round = 0; round < 100; round++) {
        uint64_t to[RANKS_MAX], bytes[RANKS_MAX], count = 0;
        const void *send[RANKS_MAX];
        for (int other = 0; other < size; other++) {
            uint64_t now = length(rank, other, round);
            if (now == 0)
                continue;
            unsigned char *block = (unsigned char *)malloc(now);
            memset(block, rank * 16 + other + round, now);
            to[count] = (uint64_t)other;
            bytes[count] = now;
            send[count++] = block;
        }
        memset(inbox, 0, sizeof inbox);
        if (table.exchange(table.context, count, to, send, bytes, room, inbox) != 0)
            return fails("an exchange failed", round);
        for (int other = 0; other < size; other++) {
            if (inbox[other].length != length(other, rank, round))
                return fails("another length", round);
            for (uint64_t at = 0; at < inbox[other].length; at++)
                if (inbox[other].bytes[at] != (unsigned char)(other * 16 + rank + round))
                    return fails("another byte", round);
            free(inbox[other].bytes);
        }
        for (uint64_t i = 0; i < count; i++)
            free((void *)(uintptr_t)send[i]);
    }
    zazen_collectives_free_mpi(&table);
    MPI_Finalize();
    if (rank == 0)
        printf("every block arrived\n");
    return 0;
}
