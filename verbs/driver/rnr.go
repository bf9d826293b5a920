package driver

import "time"

// rnrTimers are the delays of the 5-bit RNR timer code, in units of 10 µs
// (InfiniBand table "Encoding for RNR NAK timer field", as printed in ibv_modify_qp(3)).
var rnrTimers = [32]int32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay returns the time that a MinRNRTimer code stands for, 10 µs to
// 655.36 ms. Bits above the fifth are ignored.
func RNRDelay(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}
