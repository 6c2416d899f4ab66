// One thread block: its threads, their waits, and the scheduler that runs them on one OS thread.
//
// A fiber runs CUDA threads one after another and is left behind by a thread that has to wait. So a
// kernel without barriers runs as a plain loop, and only threads that wait pay for a stack switch.
#pragma once
#include <deque>
#include <exception>
#include <utility>

#include "fibers.h"

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace hiera_emu {

enum class Wait : uint8_t { ready, barrier, warp, cluster, done };

// Lanes of one warp that exchange values under one mask. Slots are doubled by parity of `generation`:
// the next exchange may begin before every lane has read the last one.
struct Group {
    unsigned mask = 0, arrived = 0, generation = 0;
    alignas(16) unsigned char slots[2][32][16];
};

struct Warp {
    unsigned alive = 0;
    size_t groups_used = 0;
    std::deque<Group> groups;  // A deque: a waiting lane keeps a pointer.
};

struct Thread {
    uint3 id;
    Wait wait;
    uint8_t lane;
    uint16_t warp;
    unsigned generation;  // Of `group`, when it began to wait.
    Group* group;
    const char* where;  // The call it waits in, and the line of that call.
    int line;
    void* stack_pointer;
    Stack* stack;
};

struct Fault {
    int signal = 0;  // 0: none.
    uintptr_t address = 0;
};

// A static shared variable that was refilled for this block.
struct Poisoned {
    void* address;
    size_t bytes;
};
constexpr int kPoisoned = 64;  // More are left as they are.

struct Block {
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Thread* current = nullptr;      // Null while no CUDA thread runs.
    Thread* last = nullptr;         // The one that ran last, for messages.
    Stack* running_stack = nullptr;
    void* scheduler = nullptr;      // Stack pointer of run_block.
    int size = 0, started = 0, alive = 0, at_barrier = 0, at_cluster = 0;
    bool reversed = false;          // Thread order within the block; see run_grid.
    int any = 0, all = 1, count = 0, any_result = 0, all_result = 1, count_result = 0;
    void (*entry)(void*) = nullptr;
    void* argument = nullptr;
    std::exception_ptr error;
    volatile bool out_of_time = false;
    Fault fault;
    Poisoned poisoned[kPoisoned];
    int poisoned_count = 0;
};
inline Block block;  // The one that runs; others of its cluster are parked (cluster.h).
inline StackPool stacks;

inline int thread_at(int position) { return block.reversed ? block.size - 1 - position : position; }

inline bool complete(const Warp& warp, const Group& group) {
    unsigned needed = group.mask & warp.alive;
    return needed && (group.arrived & needed) == needed;
}

inline void release(Group& group) {
    group.arrived = 0;
    ++group.generation;
}

inline void yield() {
    Thread* self = block.current;
    hiera_emu_switch(&self->stack_pointer, block.scheduler);
    threadIdx = self->id;
}

inline void finish(Thread& thread) {
    thread.wait = Wait::done;
    --block.alive;
    Warp& warp = block.warps[thread.warp];
    warp.alive &= ~(1u << thread.lane);
    // Those who wait for this lane need not: a lane that has left counts as arrived.
    for (size_t i = 0; i < warp.groups_used; ++i)
        if (warp.groups[i].arrived && complete(warp, warp.groups[i])) release(warp.groups[i]);
}

// Body of every fiber: run threads, in order, until one warp is left with waiting lanes.
inline void fiber_main() {
    try {
        for (;;) {
            Thread& thread = block.threads[thread_at(block.started++)];
            thread.wait = Wait::ready;
            thread.stack = block.running_stack;
            thread.where = nullptr;
            block.current = &thread;
            threadIdx = thread.id;
            block.entry(block.argument);
            Thread& ended = *block.current;
            finish(ended);
            if (block.started == block.size || block.out_of_time) break;
            // A new warp starts only when this one is done: lanes of a warp stay together.
            if (block.threads[thread_at(block.started)].warp != ended.warp && block.warps[ended.warp].alive) break;
        }
    } catch (...) {
        block.error = std::current_exception();
    }
    stacks.give(block.running_stack);
    void* unused;
    hiera_emu_switch(&unused, block.scheduler);
}

// Continue a thread, or start a fiber at the next thread that has not begun.
inline void resume(Thread* thread) {
    void* to;
    if (thread) {
        block.running_stack = thread->stack;
        to = thread->stack_pointer;
    } else {
        block.running_stack = stacks.take();
        to = first_frame(block.running_stack->top(), &fiber_main);
    }
    block.current = thread;
    hiera_emu_switch(&block.scheduler, to);
    block.last = std::exchange(block.current, nullptr);
    block.running_stack = nullptr;
}

[[noreturn]] void stop_for_fault();   // guard.h
[[noreturn]] inline void stop_for_error() {
    stacks.reclaim_all();
    std::rethrow_exception(std::exchange(block.error, nullptr));
}

inline std::string thread_text(const Thread& thread) {
    std::string text = "thread " + text_of(thread.id) + " waits in " + thread.where;
    if (thread.line) text += " at line " + std::to_string(thread.line);
    return text;
}

// Nobody can go on: say who waits where.
[[noreturn]] inline void stop_for_deadlock() {
    std::string text = "block " + text_of(blockIdx) + ": ";
    const Thread* in_warp = nullptr;
    const Thread* in_barrier = nullptr;
    for (int i = 0; i < block.started; ++i) {
        const Thread& thread = block.threads[thread_at(i)];
        if (thread.wait == Wait::warp && !in_warp) in_warp = &thread;
        if (thread.wait == Wait::barrier && !in_barrier) in_barrier = &thread;
    }
    if (in_warp) {
        char masks[96];
        std::snprintf(masks, sizeof masks, "mask %08x names lanes that never come (arrived: %08x) in warp %d; ",
                      in_warp->group->mask, in_warp->group->arrived, int(in_warp->warp));
        text += masks;
    } else {
        text += "deadlock; ";
    }
    text += std::to_string(block.at_barrier) + " of " + std::to_string(block.alive) +
            " live threads wait at __syncthreads";
    if (block.at_cluster) text += " and " + std::to_string(block.at_cluster) + " at a cluster's barrier";
    if (in_warp) text += "; " + thread_text(*in_warp);
    if (in_barrier) text += "; " + thread_text(*in_barrier);
    stacks.reclaim_all();
    die(text);
}

// Lanes of one warp at different barriers: undefined, and a hang on some GPUs. Warps may differ.
inline void check_barrier_lines() {
    for (int i = 1; i < block.size; ++i) {
        const Thread &one = block.threads[i - 1], &other = block.threads[i];
        if (one.warp != other.warp || one.wait != Wait::barrier || other.wait != Wait::barrier) continue;
        if (one.line == other.line) continue;
        std::string text = "block " + text_of(blockIdx) + ": lanes of one warp wait at different barriers: " +
                           thread_text(one) + ", " + thread_text(other);
        stacks.reclaim_all();
        die(text);
    }
}

inline void release_barrier() {
    check_barrier_lines();
    block.any_result = std::exchange(block.any, 0);
    block.all_result = std::exchange(block.all, 1);
    block.count_result = std::exchange(block.count, 0);
    block.at_barrier = 0;
    for (int i = 0; i < block.size; ++i)
        if (block.threads[i].wait == Wait::barrier) block.threads[i].wait = Wait::ready;
}

// Run one warp until each of its lanes waits or has ended. True if any of them moved.
inline bool run_warp(int first_position, int last_position) {
    bool moved = false;
    for (bool again = true; again;) {
        again = false;
        for (int position = first_position; position < last_position; ++position) {
            Thread* thread = nullptr;
            if (position < block.started) {
                thread = &block.threads[thread_at(position)];
                if (thread->wait == Wait::warp && thread->group->generation != thread->generation)
                    thread->wait = Wait::ready;
                if (thread->wait != Wait::ready) continue;
            }
            again = moved = true;
            resume(thread);
            if (block.error) stop_for_error();
            if (block.fault.signal || block.out_of_time) stop_for_fault();
        }
    }
    return moved;
}

inline void start_block() {
    block.started = block.at_barrier = block.at_cluster = block.poisoned_count = 0;
    block.alive = block.size;
    const int warps = int(block.warps.size());
    for (int w = 0; w < warps; ++w) {
        int lanes = block.size - w * 32;
        block.warps[w].alive = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        block.warps[w].groups_used = 0;
    }
}

// Run the block until all its threads have ended or wait for the other blocks of their cluster.
inline void advance_block() {
    const int warps = int(block.warps.size());
    while (block.alive) {
        bool moved = false;
        for (int w = 0; w < warps; ++w) {
            // Reversed, the partial warp comes first.
            int low = (block.reversed ? warps - 1 - w : w) * 32;
            int high = low + 32 < block.size ? low + 32 : block.size;
            moved |= block.reversed ? run_warp(block.size - high, block.size - low) : run_warp(low, high);
        }
        if (block.alive && block.at_barrier == block.alive) {
            release_barrier();
            moved = true;
        }
        if (moved || !block.alive) continue;
        if (block.at_cluster == block.alive) return;
        stop_for_deadlock();
    }
}

inline void wait_with(Wait wait, int& waiting, const char* where, int line) {
    Thread& self = *block.current;
    self.wait = wait;
    self.where = where;
    self.line = line;
    ++waiting;
    yield();
}

inline void wait_at_barrier(const char* where, int line) { wait_with(Wait::barrier, block.at_barrier, where, line); }
inline void wait_at_cluster(const char* where, int line) { wait_with(Wait::cluster, block.at_cluster, where, line); }

inline void release_cluster() {
    block.at_cluster = 0;
    for (int i = 0; i < block.size; ++i)
        if (block.threads[i].wait == Wait::cluster) block.threads[i].wait = Wait::ready;
}

}  // namespace hiera_emu
