// A shared library whose constructors and destructors use the standard streams: they run before a preloaded
// library's own, and after its end.
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {
struct Early {
    Early()
    {
        std::ios_base::Init streams; // as every unit that includes <iostream> has it
        if (std::getenv("EARLY_SPEAKS")) {
            std::cout << "constructor: cout\n";
            std::printf("constructor: printf\n");
        }
    }
    ~Early()
    {
        if (std::getenv("EARLY_SPEAKS")) {
            std::printf("destructor: printf\n");
            std::cout << "destructor: cout\n" << std::flush;
        }
    }
} early __attribute__((init_priority(101)));
std::FILE *held = stdout; // whoever holds libc's object before main
} // namespace

extern "C" std::FILE *early_stdout() { return held; }
