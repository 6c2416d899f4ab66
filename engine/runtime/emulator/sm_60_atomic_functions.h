#pragma once
#include <hiera_emu/all.h>
