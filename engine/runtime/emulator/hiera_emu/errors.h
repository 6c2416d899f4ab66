// What is said when a kernel breaks a rule: one exception with the kernel, its launch and the place.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "vectors.h"

namespace hiera_emu {

// Where we are, for messages. Lines are the user's own: the text is compiled under `#line 1`.
struct Place {
    const char* kernel = nullptr;  // Null outside of a launch.
    const char* file = "";
    int line = 0;
};
inline Place launch_place;
inline std::string warnings;

inline std::string text_of(uint3 v) {
    return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

inline std::string launch_text() {
    if (!launch_place.kernel) return "";
    return "kernel " + std::string(launch_place.kernel) + " launched at " + launch_place.file + ":" +
           std::to_string(launch_place.line);
}

[[noreturn]] inline void die(const std::string& problem) {
    std::string where = launch_text();
    throw std::runtime_error("[emulated] " + (where.empty() ? "" : where + ": ") + problem);
}

inline void warn(const std::string& message) {
    if (warnings.size() < 4000 && warnings.find(message) == std::string::npos) warnings += message + "\n";
}

inline double environment_number(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atof(text) : otherwise;
}

}  // namespace hiera_emu
