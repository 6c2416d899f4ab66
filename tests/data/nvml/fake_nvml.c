// NVIDIA's management library, as far as HIERA asks it. What it says stands in the file that FAKE_NVML names:
// lines `process PID BYTES`, `memory TOTAL USED`, `sm MHZ`, `mem MHZ`, `temperature C`, `power MW`, `reasons BITS`,
// and `refuse NAME` for calls that fail. Read at every call, so that a test can change it meanwhile.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static FILE* open_file(void) { const char* path = getenv("FAKE_NVML"); return path ? fopen(path, "r") : NULL; }

static int number(const char* key, unsigned long long* value, unsigned long long* second) {
  FILE* file = open_file();
  char name[64];
  unsigned long long one = 0, two = 0;
  int found = 9;  // NVML_ERROR_NOT_SUPPORTED is 3, any will do.
  char line[256];
  while (file && fgets(line, sizeof line, file)) {
    int count = sscanf(line, "%63s %llu %llu", name, &one, &two);
    if (count >= 2 && strcmp(name, key) == 0) { *value = one; if (second) *second = two; found = 0; break; }
  }
  if (file) fclose(file);
  return found;
}

int nvmlInit_v2(void) { return open_file() ? 0 : 9; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { *handle = (void*)(long)(index + 1); return index < 8 ? 0 : 2; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** handle) { *handle = (void*)1; return strcmp(address, "0000:1B:00.0") ? 6 : 0; }

int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* rows) {
  FILE* file = open_file();
  char line[256];
  unsigned found = 0;
  (void)handle;
  while (file && fgets(line, sizeof line, file)) {
    unsigned pid; unsigned long long used;
    if (strncmp(line, "refuse processes", 16) == 0) { fclose(file); return 4; }
    if (sscanf(line, "process %u %llu", &pid, &used) == 2 && found < *count) { rows[found].pid = pid; rows[found].used = used; ++found; }
  }
  if (file) fclose(file);
  *count = found;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* three) {
  unsigned long long total, used;
  (void)handle;
  int status = number("memory", &total, &used);
  if (status == 0) { three[0] = total; three[1] = total - used; three[2] = used; }
  return status;
}

static int small(const char* key, unsigned* value) { unsigned long long wide; int status = number(key, &wide, NULL); if (!status) *value = (unsigned)wide; return status; }
int nvmlDeviceGetClockInfo(void* handle, int type, unsigned* value) { (void)handle; return small(type == 1 ? "sm" : "mem", value); }
int nvmlDeviceGetTemperature(void* handle, int sensor, unsigned* value) { (void)handle; (void)sensor; return small("temperature", value); }
int nvmlDeviceGetPowerUsage(void* handle, unsigned* value) { (void)handle; return small("power", value); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* value) { (void)handle; return number("reasons", value, NULL); }
