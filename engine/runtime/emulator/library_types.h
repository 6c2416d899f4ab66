#pragma once
#include <hiera_emu/half.h>
