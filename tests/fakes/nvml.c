/* NVIDIA's management library as nvidia-ml-py calls it: an A100 in MIG mode, and a GPU that keeps all but its name to
   itself. FAKE_NVML_GPUS says how many there are, FAKE_NVML_ERROR what nvmlInit answers, FAKE_NVML_LOG where init and
   shutdown are noted. Error codes: nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NO_PERMISSION = 4, NOT_FOUND = 6 };

static int users;
static int devices[2];
static int slices[7];

static void note(const char *what) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%s\n", what);
        fclose(log);
    }
}

int nvmlInitWithFlags(unsigned flags) {
    const char *error = getenv("FAKE_NVML_ERROR");
    if (error)
        return atoi(error);
    users++;
    note("init");
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!users)
        return UNINITIALIZED;
    users--;
    note("shutdown");
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return "an error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "570.86.10");
    return users ? SUCCESS : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12080;
    return users ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *gpus = getenv("FAKE_NVML_GPUS");
    *count = gpus ? atoi(gpus) : 2;
    return users ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **device) {
    *device = &devices[index];
    return index < 2 ? SUCCESS : NO_PERMISSION;
}

int nvmlDeviceGetName(int *device, char *text, unsigned size) {
    if (device == &devices[0])
        snprintf(text, size, "NVIDIA A100-SXM4-40GB");
    else if (device == &devices[1])
        snprintf(text, size, "NVIDIA T4");
    else
        snprintf(text, size, "NVIDIA A100-SXM4-40GB MIG %s", device == &slices[0] ? "3g.20gb" : "1g.5gb");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(int *device, unsigned long long *total) {
    total[0] = 42949672960;
    return device == &devices[0] ? SUCCESS : NO_PERMISSION;
}

int nvmlDeviceGetCudaComputeCapability(int *device, int *major, int *minor) {
    *major = 8;
    *minor = 0;
    return device == &devices[0] ? SUCCESS : NO_PERMISSION;
}

int nvmlDeviceGetMigMode(int *device, unsigned *current, unsigned *pending) {
    *current = *pending = 1;
    return device == &devices[0] ? SUCCESS : NO_PERMISSION;
}

int nvmlDeviceGetMaxMigDeviceCount(int *device, unsigned *count) {
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(int *device, unsigned index, int **slice) {
    *slice = &slices[index];
    return index == 0 || index == 4 ? SUCCESS : NOT_FOUND;
}
