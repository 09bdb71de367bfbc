/* A stand-in for libdcmi.so: two cards. Card 0 has HBM (type 10), card 1 only type 5, as edge parts do. */
#include <stdlib.h>
int dcmi_init(void) { return getenv("SITS_STUB_DCMI_FAILS") ? -8005 : 0; }
int dcmi_get_card_list(int *count, int *list, int size) { *count = 2; list[0] = 0; list[1] = 1; return 0; }
int dcmi_get_device_utilization_rate(int card, int device, int type, unsigned *rate) {
    if (card == 0 && type == 10) { *rate = 40; return 0; }
    if (card == 1 && type == 5) { *rate = 25; return 0; }
    return -8255; /* not supported */
}
int dcmi_get_device_power_info(int card, int device, int *tenths) {
    if (card != 0) return -8255;
    *tenths = 934;
    return 0;
}
