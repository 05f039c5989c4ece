/* maps.c: mappings of a file: `maps FOLDER`. Prints what each gives, an errno's name or what is
 * read. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf fault;

static void jump(int signal)
{
    siglongjmp(fault, signal);
}

static const char *name(void *memory)
{
    return memory == MAP_FAILED ? strerrorname_np(errno) : "mapped";
}

static int make(const char *path, const char *text)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (write(fd, text, strlen(text)) < 0)
        perror("write");
    return fd;
}

int main(int count, char **words)
{
    char text[64] = "";
    int fd, other, status;
    char *a, *b;
    struct stat stat;
    if (count < 2 || chdir(words[1]))
        return 2;
    signal(SIGBUS, jump);
    signal(SIGSEGV, jump);

    fd = make("private", "private contents\n");
    a = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    printf("private %s %.7s\n", name(a), a);
    memcpy(a, "PRIVATE", 7);
    printf("private kept %.7s, file %zd", a, pread(fd, text, 7, 0));
    printf(" %s\n", text);
    a = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    status = sigsetjmp(fault, 1);
    if (status == 0)
        printf("beyond the end %d\n", a[4096]);
    else
        printf("beyond the end signal %d\n", status);
    a = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 4096);
    printf("all beyond %s\n", name(a));
    printf("offset %s, length %s\n", name(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 5)),
           name(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0)));
    printf("no sharing %s\n", name(mmap(NULL, 4096, PROT_READ, 0, fd, 0)));
    b = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    a = mmap(b, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
    printf("fixed %d %.4s\n", a == b, a);
    mkdir("dir", 0755);
    other = open("dir", O_RDONLY);
    printf("a directory %s\n", name(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, other, 0)));
    other = open("private", O_WRONLY);
    printf("write only %s\n", name(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, other, 0)));
    other = open("private", O_RDONLY);
    printf("read only, shared for writing %s\n",
           name(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0)));
    a = mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 0);
    printf("shared for reading %s %.7s\n", name(a), a);
    printf("made writable %s\n", mprotect(a, 4096, PROT_READ | PROT_WRITE) ? strerrorname_np(errno) : "yes");
    fflush(stdout);
    if (count > 2)
        return 0;

    /* From here on: what only one kernel can do. */
    fd = make("shared", "shared contents\n");
    a = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    printf("shared %s\n", name(a));
    memcpy(a, "SHARED", 6);
    printf("file %zd", pread(fd, text, 6, 0));
    printf(" %s\n", text);
    if (pwrite(fd, "written", 7, 0) != 7)
        perror("pwrite");
    printf("mapping %.7s\n", a);
    fflush(stdout);
    if (fork() == 0) {
        memcpy(a + 7, "child", 5);
        _exit(0);
    }
    wait(&status);
    printf("after fork %.12s\n", a);
    b = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE, fd, 0);
    memcpy(b, "V", 1);
    printf("validated %s %c\n", name(b), *a);
    b = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    status = mprotect(b, 4096, PROT_READ | PROT_WRITE);
    *b = 'P';
    printf("made writable %d %c\n", status, *a);
    close(fd);
    a[1] = 'c';
    printf("msync %d\n", msync(a, 4096, MS_SYNC));
    munmap(a, 4096);

    fd = open("huge", O_RDWR | O_CREAT, 0644);
    if (ftruncate(fd, (off_t)1 << 30))
        perror("ftruncate");
    for (int i = 0; i < 20; i++) {
        a = mmap(NULL, (size_t)1 << 30, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        a[(size_t)i << 25] = (char)('a' + i);
        munmap(a, (size_t)1 << 30);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    fstat(fd, &stat);
    printf("huge %d blocks %d\n", usage.ru_maxrss < 65536, stat.st_blocks < 4096);
    return 0;
}
