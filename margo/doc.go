// Package margo adds to [cinnabar] the parts of Margo's API that go beyond calls, handlers and bulk memory:
//
//   - [Statistics] is the monitor that measures the steps of calls and transfers, and writes Margo's file of statistics.
package margo
