/* A stand-in for libnvidia-ml.so.1: one H200-like device whose behaviour SITS_STUB_MODE picks.
 * Modes: ok, no_gpm, nan, no_permission, no_driver, no_energy, mig. Utilisation is SITS_STUB_DRAM percent. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned version, supported; } gpm_support;
typedef struct { char *a, *b, *c; } metric_info;
typedef struct { unsigned id, status; double value; metric_info info; } gpm_metric;
typedef struct { unsigned version, count; void *sample1, *sample2; gpm_metric metrics[477]; } gpm_get;
typedef struct { unsigned version; unsigned long long total, reserved, free_, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;

static int is(const char *mode) {
    const char *have = getenv("SITS_STUB_MODE");
    return strcmp(have ? have : "ok", mode) == 0;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
int nvmlInit_v2(void) { return is("no_driver") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *t, unsigned n) { snprintf(t, n, "580.stub"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(size_t)(0x10 + i); return 0; }
int nvmlDeviceGetName(void *h, char *t, unsigned n) { snprintf(t, n, "NVIDIA H200"); return 0; }
int nvmlDeviceGetUUID(void *h, char *t, unsigned n) { snprintf(t, n, "GPU-stub"); return 0; }
int nvmlDeviceGetMemoryBusWidth(void *h, unsigned *w) { *w = 6016; return 0; }
int nvmlDeviceGetMaxClockInfo(void *h, unsigned kind, unsigned *mhz) { *mhz = kind == 2 ? 3201 : 1; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { *mw = 412500; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
    if (is("no_energy")) return 3;
    *mj = (unsigned long long)(now() * 100000.0); /* 100 W */
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2 *m) {
    if (m->version != (sizeof(memory_v2) | (2u << 24))) return 25;
    m->total = 150000000000ull; m->used = 7000000000ull;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *h, utilization *u) { u->gpu = 100; u->memory = 100; return 0; }
int nvmlDeviceGetMigMode(void *h, unsigned *c, unsigned *p) { *c = *p = is("mig"); return 0; }
int nvmlGpmQueryDeviceSupport(void *h, gpm_support *s) {
    if (s->version != 1) return 25;
    s->supported = !is("no_gpm");
    return 0;
}
int nvmlGpmSampleAlloc(void **s) { *s = calloc(1, 64); return 0; }
int nvmlGpmSampleFree(void *s) { free(s); return 0; }
int nvmlGpmSampleGet(void *h, void *s) {
    if (is("no_permission")) return 4;
    *(double *)s = now();
    return 0;
}
int nvmlGpmMetricsGet(gpm_get *g) {
    const char *percent = getenv("SITS_STUB_DRAM");
    if (g->version != 1 || g->count != 1 || g->metrics[0].id != 10) return 2;
    if (*(double *)g->sample2 <= *(double *)g->sample1) return 2; /* the two buffers must be swapped each window */
    g->metrics[0].status = 0;
    g->metrics[0].value = is("nan") ? NAN : atof(percent ? percent : "50");
    return 0;
}
