/* thrown.cc: handlers of SIGSEGV that do not come back, `thrown FOLDER`: by an exception, and by the
 * end of their thread. Build it with -fnon-call-exceptions. */
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>

static char *volatile nowhere = reinterpret_cast<char *>(8);
static int file;

static void thrower(int) { throw std::runtime_error("by the handler"); }
static void ender(int) { pthread_exit(reinterpret_cast<void *>(7)); }

struct Last {
    ~Last() { printf("unwound, and a look %zd\n", write(file, nowhere, 1)); }
};

static void *end(void *) {
    Last last;
    *const_cast<volatile char *>(nowhere) = 1;
    return nullptr;
}

int main(int count, char **words) {
    struct sigaction with {};
    pthread_t thread;
    void *result = nullptr;
    if (count != 2 || chdir(words[1]) != 0)
        return 1;
    file = open("thrown", O_CREAT | O_RDWR, 0644);
    with.sa_handler = thrower;
    with.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &with, nullptr);
    for (int time = 0; time < 3; time++) {
        try {
            *const_cast<volatile char *>(nowhere) = 1;
        } catch (const std::exception &error) {
            printf("thrown %s, and a look %zd\n", error.what(), write(file, nowhere, 1));
        }
    }
    with.sa_handler = ender;
    sigaction(SIGSEGV, &with, nullptr);
    pthread_create(&thread, nullptr, end, nullptr);
    pthread_join(thread, &result);
    printf("ended %ld, and a write %zd\n", reinterpret_cast<long>(result), write(file, "x", 1));
    return 0;
}
