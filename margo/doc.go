// Package margo is Margo's face of [cinnabar]: what programs of Margo have besides calls, handlers and bulk memory.
//
//   - [Statistics] is the monitor that measures the steps of calls and transfers, and writes Margo's file of statistics.
package margo
