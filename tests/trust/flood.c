/* flood.c: opens connections as fast as it can, until it is killed: to 127.0.0.1:PORT, or to the
 * unix socket SOCKET.
 *
 *   flood leave|speak|stay PORT
 *   flood local-leave|local-speak|local-stay SOCKET
 *
 * leave: resets each at once. speak: sends some bytes before. stay: keeps 500 of them open; half of
 * these have sent a byte. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEPT 500

static const struct linger RESET = {1, 0};
static const char LOCAL[] = "local-";

int main(int argc, char **argv) {
    struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    const struct sockaddr *at;
    socklen_t at_bytes;
    static int kept[KEPT];
    unsigned long nth = 0;
    char bytes[64] = "ZZNC";
    const char *how;
    int stays, speaks;
    if (argc != 3)
        return fprintf(stderr, "flood [local-]leave|speak|stay PORT|SOCKET\n"), 2;
    how = argv[1];
    if (strncmp(how, LOCAL, sizeof LOCAL - 1) == 0) {
        how += sizeof LOCAL - 1;
        strncpy(path.sun_path, argv[2], sizeof path.sun_path - 1);
        at = (const struct sockaddr *)&path;
        at_bytes = sizeof path;
    } else {
        port.sin_port = htons((unsigned short)atoi(argv[2]));
        at = (const struct sockaddr *)&port;
        at_bytes = sizeof port;
    }
    stays = strcmp(how, "stay") == 0;
    speaks = strcmp(how, "speak") == 0;
    for (;; nth++) {
        int one = socket(at->sa_family, SOCK_STREAM, 0);
        if (one < 0)
            return perror("flood: socket"), 1;
        setsockopt(one, SOL_SOCKET, SO_LINGER, &RESET, sizeof RESET);
        if (connect(one, at, at_bytes) == 0 && (speaks || (stays && nth % 2 == 0)))
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
