// Limits on a kernel: CPU time per launch, and faults (a wild pointer, a division by zero) as exceptions.
//
// Both are signals. The handler leaves the fiber for the scheduler and never comes back, which is safe
// because device code holds nothing that must be freed.
#pragma once
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#include <iterator>

#include "block.h"

namespace hiera_emu {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
constexpr double kDefaultLimitSeconds = 30;

inline struct sigaction old_actions[sizeof kSignals / sizeof *kSignals];

inline uintptr_t stack_pointer_of(void* context) {
    auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return uintptr_t(machine.gregs[REG_RSP]);
#else
    return uintptr_t(machine.sp);
#endif
}

inline void on_signal(int number, siginfo_t* info, void* context) {
    if (number == SIGVTALRM) block.out_of_time = true;
    if (!block.running_stack || !block.running_stack->holds(stack_pointer_of(context))) {
        if (number == SIGVTALRM) return;  // The scheduler runs; it looks at out_of_time.
        signal(number, SIG_DFL);          // Not ours: let it happen again and be fatal.
        return;
    }
    block.fault = {number, uintptr_t(info->si_addr)};
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    void* unused;
    hiera_emu_switch(&unused, block.scheduler);
}

inline double limit_seconds() { return environment_number("HIERA_EMU_LIMIT_S", kDefaultLimitSeconds); }

[[noreturn]] inline void stop_for_fault() {
    Fault fault = std::exchange(block.fault, Fault{});
    bool late = std::exchange(block.out_of_time, false);
    stacks.reclaim_all();
    std::string place = "block " + text_of(blockIdx) + ", thread " + text_of(threadIdx);
    if (block.last && block.last->where)
        place += ", after " + std::string(block.last->where) + " at line " + std::to_string(block.last->line);
    place += ": ";
    char address[40];
    std::snprintf(address, sizeof address, " (address 0x%zx)", size_t(fault.address));
    if (late) {
        char limit[32];
        std::snprintf(limit, sizeof limit, "%g", limit_seconds());
        die(place + "did not end within " + limit + " s of CPU time; a loop never ends or waits for another block");
    }
    if (fault.signal == SIGFPE) die(place + "integer division by zero");
    if (fault.signal == SIGILL) die(place + "reached a trap, or read a vector at an address that is no multiple of its size");
    die(place + "invalid memory access" + address);
}

// Installed while a grid runs, so that nothing of the host process changes outside of it.
class Guard {
public:
    Guard() {
        static char* stack = static_cast<char*>(std::malloc(kHandlerStack));
        stack_t handler_stack{};
        handler_stack.ss_sp = stack;
        handler_stack.ss_size = kHandlerStack;
        sigaltstack(&handler_stack, &old_stack_);
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &old_actions[i]);
        block.out_of_time = false;
        block.fault = {};
        arm(limit_seconds());
    }
    Guard(const Guard&) = delete;
    ~Guard() {
        arm(0);
        for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &old_actions[i], nullptr);
        sigaltstack(&old_stack_, nullptr);
    }

private:
    // The timer counts this thread's CPU time, so a busy machine is not mistaken for a hang.
    static void arm(double seconds) {
        static thread_local timer_t timer = [] {
            sigevent event{};
            event.sigev_notify = SIGEV_THREAD_ID;
            event.sigev_signo = SIGVTALRM;
            event._sigev_un._tid = pid_t(syscall(SYS_gettid));
            timer_t made{};
            usable() = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &made) == 0;
            return made;
        }();
        if (!usable()) return;  // A sandbox may forbid timers; its own limits hold then.
        itimerspec when{};
        when.it_value.tv_sec = time_t(seconds);
        when.it_value.tv_nsec = long((seconds - double(time_t(seconds))) * 1e9);
        timer_settime(timer, 0, &when, nullptr);
    }
    static bool& usable() {
        static thread_local bool value = false;
        return value;
    }
    static constexpr size_t kHandlerStack = 64 << 10;
    stack_t old_stack_{};
};

}  // namespace hiera_emu
