/* flood.c: opens connections to 127.0.0.1:PORT as fast as it can, until it is killed.
 *
 *   flood leave|speak|stay PORT
 *
 * leave: resets each at once. speak: sends some bytes before. stay: keeps 500 of them open; half of
 * these have sent a byte. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEPT 500

static const struct linger RESET = {1, 0};

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static int kept[KEPT];
    unsigned long nth = 0;
    char bytes[64] = "ZZNC";
    int stays, speaks;
    if (argc != 3)
        return fprintf(stderr, "flood leave|speak|stay PORT\n"), 2;
    stays = strcmp(argv[1], "stay") == 0;
    speaks = strcmp(argv[1], "speak") == 0;
    at.sin_port = htons((unsigned short)atoi(argv[2]));
    for (;; nth++) {
        int one = socket(AF_INET, SOCK_STREAM, 0);
        if (one < 0)
            return perror("flood: socket"), 1;
        setsockopt(one, SOL_SOCKET, SO_LINGER, &RESET, sizeof RESET);
        if (connect(one, (struct sockaddr *)&at, sizeof at) == 0 && (speaks || (stays && nth % 2 == 0)))
            send(one, bytes, speaks ? sizeof bytes : 1, MSG_NOSIGNAL);
        if (!stays) {
            close(one);
            continue;
        }
        if (kept[nth % KEPT] > 0)
            close(kept[nth % KEPT]);
        kept[nth % KEPT] = one;
    }
}
