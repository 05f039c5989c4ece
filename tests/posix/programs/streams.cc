// streams.cc: what C++ and C programs do with streams: `streams FOLDER`, with its standard streams redirected.
// It prints to standard output and error, reads standard input, and leaves files in FOLDER.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <clocale>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

extern "C" std::FILE *early_stdout();

static std::string in(const char *folder, const char *name) { return std::string(folder) + "/" + name; }

int main(int count, char **words)
{
    const char *folder = words[count - 1];
    std::setlocale(LC_ALL, "C.UTF-8");
    std::fprintf(early_stdout(), "held before main\n");
    std::string line;
    while (std::getline(std::cin, line))
        std::cout << "read " << line << '\n';
    std::cerr << "cerr\n";
    std::clog << "clog" << std::endl;
    std::wclog << L"wide clog \u00e4" << std::endl;
    errno = ENOENT;
    std::perror("perror");
    std::printf("printf %d\n", 7);
    std::puts("puts");
    std::putchar('c');
    std::fflush(stdout);
    std::fflush(stdout);

    std::ofstream out(in(folder, "fstream"));
    for (int i = 0; i < 10000; i++)
        out << i << '\n';
    out.close();
    std::fstream both(in(folder, "fstream"), std::ios::in | std::ios::out);
    both.seekp(5);
    both << "XYZ";
    both.seekg(0, std::ios::end);
    std::cout << "size " << both.tellg() << std::endl;
    both.close();

    std::wofstream wide(in(folder, "wide"));
    wide.imbue(std::locale("C.UTF-8"));
    wide << L"w\u00e4rme \u4e2d\n";
    wide.close();
    std::FILE *file = std::fopen(in(folder, "wide-c").c_str(), "w+");
    std::fwprintf(file, L"gr\u00fc\u00dfe %d\n", 5);
    for (int i = 0; i < 5000; i++)
        std::fputwc(L'\u00e9', file);
    std::rewind(file);
    wchar_t text[100];
    std::printf("fgetws %d", std::fgetws(text, 100, file) != nullptr);
    std::printf(" %zu %ld\n", std::wcslen(text), std::ftell(file));
    std::fclose(file);
    file = std::fopen(in(folder, "coded").c_str(), "w,ccs=UTF-16LE");
    std::printf("coded %d\n", file != nullptr);
    if (file) {
        std::fwprintf(file, L"ab\u00e9\n");
        std::fclose(file);
    }

    // More streams at once than a table of a fixed size holds.
    std::vector<std::FILE *> all;
    for (int i = 0; i < 600; i++) {
        file = std::fopen(in(folder, "many").c_str(), "a");
        if (!file)
            break;
        all.push_back(file);
    }
    for (auto *each : all) {
        std::fprintf(each, "%d\n", fileno(each) > 2);
        std::fclose(each);
    }

    file = std::freopen(in(folder, "again").c_str(), "w", stdout);
    std::printf("into again\n");
    std::cout << "cout into again" << std::endl;
    std::printf("%d\n", fileno(stdout));
    file = std::freopen("/dev/null", "w", stdout);
    std::printf("nowhere\n");
    std::fflush(stdout);
    file = std::freopen(in(folder, "again2").c_str(), "a+", stdout);
    std::printf("back %d\n", file == stdout);
    std::ios::sync_with_stdio(false);
    std::cerr << "end " << std::ferror(stdout) << std::feof(stdin) << std::endl;
    if (std::getenv("STREAMS_FAIL")) {
        file = std::freopen(in(folder, "no/such").c_str(), "w", stdout);
        const int error = errno;
        std::cerr << (file == nullptr) << error << std::endl;
        return 3;
    }
    return 0;
}
