// Package margo adds to [cinnabar] the conventions of Margo's programs:
//
//   - [ParseConfig], [ConfigFromEnv] and [FormatConfig] read and write Margo's JSON configuration and read its environment variables;
//     [Listen] and [Open] open an engine with a [Config].
//   - [NewLogger], [LogHandler] and [NewLineHandler] have Margo's levels and its format of lines, for [log/slog].
//   - [Statistics] is the monitor that measures the steps of calls and transfers, and writes Margo's file of statistics.
//   - [DumpState] writes the state of an engine, [ServeQuery], [Query] and [QueryState] send a description of it to peers, and [Identity]
//     asks for the identity of a provider.
//   - [Timer] and [Sleep] run and delay functions in the pools of an engine, and [SetParam] changes a setting of one that runs.
//   - [Protocols], [ChooseAddr] and [ClassOf] describe the networks of this host and of an engine.
//
// All functions are safe for concurrent use, and so are the types except Config, which is plain data.
package margo
