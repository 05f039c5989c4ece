/* Walks of a tree by fts(3), in each way. Arguments: a folder, in which a tree is made, and the
 * name by which it is to be walked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_name(const FTSENT **one, const FTSENT **other) {
    return strcmp((*one)->fts_name, (*other)->fts_name);
}

static void show(const char *what, const FTSENT *entry, const char *folder) {
    const char *path = entry->fts_path;
    size_t length = strlen(folder);
    if (strncmp(path, folder, length) == 0)
        path += length;
    int root = entry->fts_level == 0;
    /* libc fills a path in when the walk comes to it. */
    if (strcmp(what, "entry"))
        path = "";
    int looked = entry->fts_info != FTS_NSOK && entry->fts_info != FTS_NS;
    printf("%s %d %d <%s> %s %d %o %ld %s%s\n", what, entry->fts_level, entry->fts_info, path,
           root ? "root" : entry->fts_name, root ? 0 : entry->fts_namelen,
           looked ? entry->fts_statp->st_mode : 0,
           looked && S_ISREG(entry->fts_statp->st_mode) ? (long)entry->fts_statp->st_size : 0L,
           entry->fts_errno ? strerrorname_np(entry->fts_errno) : "",
           entry->fts_info == FTS_DC && entry->fts_cycle ? " cycle" : "");
}

static void walk(char *const *paths, const char *folder, int options, int special) {
    printf("options %x %d\n", options, special);
    int entries = 0;
    FTS *tree = fts_open(paths, options, by_name);
    if (!tree) {
        printf("no walk: %s\n", strerrorname_np(errno));
        return;
    }
    for (FTSENT *child = fts_children(tree, 0); child; child = child->fts_link)
        show("first", child, folder);
    FTSENT *entry;
    int again = 0;
    while ((entry = fts_read(tree)) && entries++ < 1000) {
        show("entry", entry, folder);
        if (special == 1 && entry->fts_info == FTS_D && !strcmp(entry->fts_name, "b"))
            fts_set(tree, entry, FTS_SKIP);
        if (special == 2 && (entry->fts_info == FTS_SL || entry->fts_info == FTS_SLNONE) && again++ < 5)
            fts_set(tree, entry, FTS_FOLLOW);
        if (special == 3 && entry->fts_info == FTS_D && again++ < 2)
            fts_set(tree, entry, FTS_AGAIN);
    }
    printf("end %s\n", entry ? "early" : errno ? strerrorname_np(errno) : "none");
    int status = fts_set(tree, NULL, 77);
    printf("set %d %s\n", status, strerrorname_np(errno));
    printf("close %d\n", fts_close(tree));
}

int main(int argc, char **argv) {
    if (argc < 3 || chdir(argv[1]))
        return 1;
    const char *folders[] = {"t", "t/a", "t/b", "t/b/c", "t/b/c/d", "t/empty", "t/z", "t/shut"};
    for (unsigned i = 0; i < sizeof folders / sizeof *folders; i++)
        mkdir(folders[i], 0755);
    const char *files[] = {"t/f", "t/a/g", "t/b/c/d/deep", "t/z/one", "t/z/two", "t/.hidden"};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_CREAT | O_WRONLY, 0644);
        if (write(fd, "contents", i + 1) < 0)
            return 1;
        close(fd);
    }
    if (symlink("../b", "t/a/up") || symlink("nowhere", "t/dangling") || symlink("..", "t/z/cycle") ||
        mkfifo("t/pipe", 0600) || chmod("t/shut", 0))
        return 1;
    char tree[4096], inner[4096], none[4096], file[4096];
    snprintf(tree, sizeof tree, "%s/t", argv[2]);
    snprintf(inner, sizeof inner, "%s/t/b/c", argv[2]);
    snprintf(none, sizeof none, "%s/none", argv[2]);
    snprintf(file, sizeof file, "%s/t/f", argv[2]);
    char *all[] = {tree, NULL}, *several[] = {file, none, inner, NULL};
    for (int special = 0; special < 4; special++) {
        walk(all, argv[2], FTS_PHYSICAL, special);
        walk(all, argv[2], FTS_LOGICAL, special);
        walk(all, argv[2], FTS_PHYSICAL | FTS_NOCHDIR | FTS_SEEDOT, special);
        walk(several, argv[2], FTS_PHYSICAL | FTS_XDEV | FTS_COMFOLLOW, special);
    }
    FTS *counted = fts_open(all, FTS_PHYSICAL | FTS_NOSTAT, NULL);
    int entries = 0;
    while (fts_read(counted) && entries < 1000)
        entries++;
    printf("without looks %d\n", entries);
    fts_close(counted);
    return 0;
}
