// Stacks for CUDA threads that must wait for each other, and the switch between them.
// Own assembly instead of ucontext: swapcontext makes two system calls, this makes none.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "errors.h"

namespace hiera_emu {

// Saves the callee-saved registers on the present stack, stores its pointer, continues on `to`.
extern "C" void hiera_emu_switch(void** save, void* to);

#if defined(__x86_64__)
asm(R"(.text
.weak hiera_emu_switch
.type hiera_emu_switch,@function
hiera_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hiera_emu_switch,.-hiera_emu_switch
)");

// A stack that "returns" into `entry`, with the alignment a call would leave.
inline void* first_frame(char* top, void (*entry)()) {
    void** slot = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(63)) - 2;
    slot[0] = reinterpret_cast<void*>(entry);
    slot[1] = nullptr;
    std::memset(slot - 6, 0, 6 * sizeof(void*));
    return slot - 6;
}
#elif defined(__aarch64__)
asm(R"(.text
.weak hiera_emu_switch
.type hiera_emu_switch,%function
hiera_emu_switch:
  sub sp,sp,#160
  stp x19,x20,[sp,#0]
  stp x21,x22,[sp,#16]
  stp x23,x24,[sp,#32]
  stp x25,x26,[sp,#48]
  stp x27,x28,[sp,#64]
  stp x29,x30,[sp,#80]
  stp d8,d9,[sp,#96]
  stp d10,d11,[sp,#112]
  stp d12,d13,[sp,#128]
  stp d14,d15,[sp,#144]
  mov x9,sp
  str x9,[x0]
  mov sp,x1
  ldp x19,x20,[sp,#0]
  ldp x21,x22,[sp,#16]
  ldp x23,x24,[sp,#32]
  ldp x25,x26,[sp,#48]
  ldp x27,x28,[sp,#64]
  ldp x29,x30,[sp,#80]
  ldp d8,d9,[sp,#96]
  ldp d10,d11,[sp,#112]
  ldp d12,d13,[sp,#128]
  ldp d14,d15,[sp,#144]
  add sp,sp,#160
  ret
.size hiera_emu_switch,.-hiera_emu_switch
)");

inline void* first_frame(char* top, void (*entry)()) {
    char* frame = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(63)) - 160;
    std::memset(frame, 0, 160);
    *reinterpret_cast<void**>(frame + 88) = reinterpret_cast<void*>(entry);  // x30, the return address.
    return frame;
}
#else
#error "the emulator knows x86-64 and aarch64 only"
#endif

constexpr size_t kStackBytes = size_t(256) << 10;
constexpr size_t kGuardBytes = size_t(64) << 10;  // An overflow faults instead of hitting a neighbour.

struct Stack {
    char* low = nullptr;  // First usable byte; the guard lies below it.
    size_t colour = 0;    // Stacks that all began at one page offset would share a few cache sets.
    char* top() const { return low + kStackBytes - colour; }
    bool holds(uintptr_t address) const {
        return address >= uintptr_t(low) - kGuardBytes && address < uintptr_t(low) + kStackBytes;
    }
};

// Stacks are kept for the life of the process: a block's threads want the same ones as the last block's.
class StackPool {
public:
    Stack* take() {
        if (free_.empty()) grow();
        Stack* stack = free_.back();
        free_.pop_back();
        return stack;
    }
    void give(Stack* stack) { free_.push_back(stack); }
    void reclaim_all() { free_ = all_; }

private:
    void grow() {
        void* base = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) die("no memory for the stack of a CUDA thread");
        mprotect(base, kGuardBytes, PROT_NONE);
        all_.push_back(new Stack{static_cast<char*>(base) + kGuardBytes, all_.size() * 37 % 512 * 64});
        free_.push_back(all_.back());
    }
    std::vector<Stack*> free_, all_;
};

}  // namespace hiera_emu
