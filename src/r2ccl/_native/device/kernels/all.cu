#include "all.cuh"
