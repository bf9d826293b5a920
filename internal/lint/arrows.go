package lint

import (
	"fmt"
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

const modulePath = "cinnabar"

// Third-party modules, by the prefix of their import paths.
const (
	modSys       = "golang.org/x/sys"
	modCobra     = "github.com/spf13/cobra"
	modTerm      = "golang.org/x/term"
	modFlags     = "github.com/spf13/pflag" // the types in cobra's interface
	modHumanize  = "github.com/dustin/go-humanize"
	modProgress  = "github.com/vbauerster/mpb"
	modHistogram = "github.com/HdrHistogram/hdrhistogram-go"
	modBLAKE3    = "github.com/zeebo/blake3"
	modRistretto = "github.com/gtank/ristretto255"
)

// testModules may be imported by every test and by nothing else.
var testModules = []string{
	"github.com/google/go-cmp",
	"github.com/cockroachdb/datadriven",
	"go.uber.org/goleak",
	"golang.org/x/net",
	"pgregory.net/rapid",
}

// row lists the imports that one package may have besides the standard library. Packages of this module are named by their directory,
// "." for the root; a name that ends in "/..." stands for the packages below it.
type row struct {
	code    []string // packages of this module
	test    []string // further ones for its tests
	modules []string // third-party modules
}

// tutorial is the row of each tutorial. They stand on the public packages alone, because readers copy them.
var tutorial = row{code: []string{".", "margo"}}

// lesson and exercise are the rows of the course's programs and of its exercises, on the software device.
var (
	lesson   = row{code: []string{"examples/course/internal/lab", "regmem", "regmem/arena", "regmem/ring", "rmem", "rmem/verbsrmem", "verbs", "verbs/iwarp"}}
	exercise = row{code: []string{"examples/course/internal/lab", "verbs"}, test: []string{"examples/course/internal/check"}}
)

// withRoot lists the packages with types that stand in the signatures of the root package, regmem, which turns slices of numbers
// into bytes to expose, and regmem/pool, which lends exposed buffers. A package that may import the root may import them too.
var withRoot = []string{"codes", "identity", "stats", "regmem", "regmem/pool"}

// layers is the table of arrows, lowest layer first: a package imports only from rows above its own.
// A new package is a decision about layers, so it fails until it has a row here.
var layers = map[string]row{
	// Packages that import nothing, or only each other.
	"internal/invariants":  {},
	"internal/sglist":      {},
	"internal/grace":       {test: []string{"internal/leaktest"}},
	"internal/rundown":     {code: []string{"internal/invariants"}},
	"internal/crc32c":      {modules: []string{modSys}},
	"internal/testproc":    {},
	"internal/hostmem":     {code: []string{"internal/invariants"}, test: []string{"internal/testproc"}, modules: []string{modSys}},
	"internal/sockio":      {code: []string{"internal/invariants", "internal/rawcall"}, modules: []string{modSys}},
	"internal/shm":         {modules: []string{modSys}},
	"internal/rawcall":     {modules: []string{modSys}},
	"internal/lint":        {},
	"internal/lint/sample": {},
	"internal/recording":   {},
	"internal/release":     {}, // builds the command by the go command
	"internal/waitlist":    {},
	"internal/capture":     {},
	"internal/dnstest":     {},
	"internal/hostquota":   {code: []string{"internal/invariants"}, modules: []string{modSys}},
	"internal/leaktest":    {code: []string{"internal/hostmem"}}, // for tests
	"internal/logtest":     {},                                   // for tests
	"internal/progress":    {code: []string{"internal/invariants", "internal/rawcall"}, modules: []string{modSys}},
	"internal/querylimit":  {code: []string{"internal/invariants", "internal/hostquota"}},
	"internal/audit":       {code: []string{"internal/invariants", "internal/hostquota"}},

	// Registered memory and its allocators. They know no device.
	"regmem":       {code: []string{"internal/hostmem"}, test: []string{"regmem/arena", "verbs", "verbs/iwarp"}},
	"regmem/arena": {code: []string{"regmem", "internal/hostmem", "internal/waitlist"}, test: []string{"verbs", "verbs/iwarp"}},
	"regmem/ring":  {code: []string{"regmem", "internal/hostmem", "internal/waitlist"}},
	"regmem/pool":  {code: []string{"regmem", "internal/rundown"}, test: []string{".", "verbs", "verbs/iwarp"}},

	// Mercury's return codes.
	"codes": {},

	// The authentication of peers.
	"identity":            {test: []string{"internal/tlstest"}},
	"internal/tokenproof": {code: []string{"identity"}},
	"internal/admission":  {code: []string{"identity", "internal/hostquota", "internal/invariants"}},

	// Mercury's network abstraction, and the networks behind it.
	"internal/na":         {code: []string{"identity", "internal/admission", "internal/rundown", "internal/audit", "internal/hostquota", "internal/progress"}},
	"internal/na/ofiaddr": {code: []string{"internal/hostquota", "internal/na"}},
	"internal/na/natest":  {code: []string{"internal/na", "internal/hostquota"}},
	"internal/hg/wire":    {code: []string{"codes"}, test: []string{"internal/recording"}},
	"internal/hg":         {code: []string{"internal/invariants", "internal/rundown", "codes", "internal/hg/wire", "internal/sglist", "internal/na", "internal/hostmem", "internal/hostquota", "internal/audit", "internal/progress"}, test: []string{"internal/na/natest", "internal/recording", "internal/logtest"}},
	"internal/sched":      {code: []string{"internal/invariants", "internal/na", "internal/hostquota"}},
	"margo/internal/conf": {},
	"internal/peerbook":   {code: []string{"internal/invariants", "internal/na"}},
	"internal/na/sm":      {code: []string{"identity", "internal/admission", "internal/sockio", "internal/na", "internal/peerbook", "internal/shm", "internal/hostmem", "internal/hostquota", "internal/audit", "internal/progress", "internal/rawcall"}, modules: []string{modSys}, test: []string{"internal/invariants", "internal/testproc"}},
	"internal/tlstest":    {},
	"internal/tlsio":      {code: []string{"internal/hostmem", "internal/invariants", "internal/sockio"}, test: []string{"internal/tlstest"}},
	"internal/na/ofitcp":  {code: []string{"identity", "internal/admission", "internal/tokenproof", "internal/tlsio", "internal/invariants", "internal/na", "internal/na/ofiaddr", "internal/peerbook", "internal/rundown", "internal/sockio", "internal/hostmem", "internal/hostquota", "internal/audit", "internal/progress"}, test: []string{"internal/dnstest", "internal/tlstest"}},

	"internal/na/autosm": {code: []string{"identity", "internal/na", "internal/na/sm", "internal/hostquota", "internal/progress", "internal/rundown"}, test: []string{"internal/na/ofitcp"}},

	// Protocol state machines: bytes in, effects out; no sockets, clocks or memory of their own.
	"internal/iwarp/mpa":   {},
	"internal/iwarp/ddp":   {},
	"internal/iwarp/rdmap": {code: []string{"internal/iwarp/ddp"}},
	"internal/iwarp":       {test: []string{"internal/iwarp/..."}}, // documentation, and tests of the three together

	// verbs declares the interfaces of devices and imports no device; its tests open one.
	"verbs": {
		code: []string{"identity", "internal/hostmem", "internal/invariants", "internal/progress"},
		test: []string{"verbs/internal/rig", "verbs/rdmacm", "verbs/oob", "verbs/iwarp", "internal/leaktest"},
	},
	"internal/verbsrules":       {code: []string{"verbs"}}, // for devices, also those of tests
	"verbs/internal/eventqueue": {code: []string{"verbs"}}, // for devices
	"verbs/rdmacm":              {code: []string{"identity", "verbs"}, test: []string{"verbs/internal/rig", "verbs/iwarp", "internal/leaktest"}},
	"verbs/oob":                 {code: []string{"verbs"}, test: []string{"verbs/internal/rig", "internal/leaktest"}},
	"verbs/internal/rig":        {code: []string{"verbs", "internal/verbsrules", "verbs/verbstest/memdev"}}, // for the tests of verbs, verbs/rdmacm and verbs/oob
	"verbs/verbstest/memdev":    {code: []string{"verbs", "internal/hostmem", "internal/invariants"}},
	"verbs/verbstest": {
		code:    []string{"internal/invariants", "verbs", "verbs/rdmacm", "verbs/oob", "internal/hostmem"},
		test:    []string{"verbs/verbstest/memdev"},
		modules: []string{modSys},
	},
	"verbs/iwarp": {
		code:    []string{"identity", "internal/tlsio", "internal/tokenproof", "verbs", "verbs/internal/eventqueue", "internal/iwarp/...", "internal/crc32c", "internal/hostmem", "internal/rundown", "internal/sockio", "internal/invariants", "internal/hostquota", "internal/audit", "internal/progress"},
		test:    []string{"internal/testproc", "internal/tlstest", "verbs/verbstest", "verbs/fault", "verbs/oob"},
		modules: []string{modSys},
	},
	"verbs/internal/ucm":    {code: []string{"internal/hostmem"}, modules: []string{modSys}},
	"verbs/internal/uverbs": {code: []string{"internal/hostmem", "internal/rawcall"}, test: []string{"verbs/internal/ucm"}, modules: []string{modSys}},
	"verbs/rdmacore": {
		code:    []string{"verbs", "verbs/rdmacm", "verbs/internal/eventqueue", "verbs/internal/ucm", "verbs/internal/uverbs", "internal/verbsrules", "internal/hostmem", "internal/rundown"},
		test:    []string{"verbs/verbstest", "verbs/iwarp", "verbs/oob"},
		modules: []string{modSys},
	},
	"internal/devicetest": {code: []string{"verbs", "verbs/iwarp", "verbs/rdmacore"}}, // for tests on either device
	"verbs/fault": {
		code: []string{"identity", "verbs", "internal/hostmem", "internal/invariants"},
		test: []string{"verbs/verbstest", "verbs/verbstest/...", "verbs/iwarp"},
	},

	// Mercury's network over RDMA devices: on package verbs, below the engine.
	"internal/na/ofiverbs": {
		code: []string{"identity", "internal/admission", "internal/hostmem", "internal/invariants", "internal/na", "internal/na/ofiaddr", "internal/peerbook", "internal/progress", "internal/rundown", "internal/hostquota", "internal/audit", "verbs"},
		test: []string{"internal/dnstest", "internal/testproc", "verbs/iwarp", "verbs/fault", "verbs/verbstest/memdev"}, modules: []string{modSys},
	},

	// The devices that engines can use.
	"verbs/auto": {code: []string{"internal/na", "internal/na/ofiverbs", "verbs", "verbs/iwarp", "verbs/rdmacore"}},

	// Packages above verbs that import no device; their tests open some.
	"internal/credit": {},
	"xfer": {
		code:    []string{"verbs", "internal/credit", "internal/crc32c", "internal/grace", "internal/hostquota", "internal/audit"},
		test:    []string{"internal/testproc", "verbs/iwarp", "verbs/rdmacore", "verbs/fault", "verbs/verbstest/memdev", "internal/hostmem", "internal/leaktest", "internal/logtest"},
		modules: []string{modSys},
	},

	"xfer/tree": {
		code:    []string{"internal/hostquota", "xfer"},
		test:    []string{"internal/leaktest", "internal/testproc", "verbs", "verbs/iwarp"},
		modules: []string{modSys},
	},

	"xfer/share": {
		code: []string{"internal/hostquota", "verbs", "xfer", "xfer/tree"},
		test: []string{"internal/leaktest", "verbs/iwarp"},
	},

	"verbs/flow": {
		code: []string{"identity", "verbs", "regmem/ring", "regmem", "internal/credit", "internal/waitlist", "internal/hostquota", "internal/audit"},
		test: []string{"internal/hostmem", "internal/invariants", "internal/devicetest", "verbs/rdmacm", "verbs/iwarp", "verbs/rdmacore", "verbs/fault", "verbs/verbstest/memdev", "regmem/arena"},
	},
	"verbs/rstream": {code: []string{"identity", "internal/rundown", "verbs", "verbs/flow"}, test: []string{"internal/devicetest", "verbs/iwarp", "verbs/rdmacore", "verbs/fault", "verbs/verbstest/memdev"}},

	// The families' encodings: Go values to bytes and back, no I/O.
	"codec":               {test: []string{"codec/hgproc", "codec/cereal", "internal/codecplan"}},
	"internal/codecplan":  {code: []string{"codec"}},
	"internal/codectest":  {code: []string{"codec", "codec/hgproc"}}, // for the tests of codecs
	"codec/hgproc":        {code: []string{"codec", "internal/codecplan"}, test: []string{"internal/codectest"}},
	"codec/cereal":        {code: []string{"codec", "internal/codecplan"}, test: []string{"internal/codectest", "internal/cerealtest"}},
	"internal/cerealtest": {code: []string{"codec/cereal"}},

	// The seam between engines and RPCs of package native.
	"internal/envelope": {code: []string{"internal/invariants", "codes", "codec"}},

	// The reports of an engine about its work.
	"stats": {test: []string{"."}},

	// RPC and bulk memory, on Mercury's core and the networks below it.
	".": {
		code: []string{"identity", "internal/admission", "codes", "internal/invariants", "stats", "codec", "codec/hgproc", "codec/cereal", "internal/codecplan", "internal/envelope", "internal/rundown", "internal/sched", "internal/sglist", "internal/hg", "internal/hg/wire", "internal/na", "internal/na/autosm", "internal/na/ofitcp", "internal/na/sm", "internal/progress", "internal/hostmem", "internal/hostquota", "internal/audit"},
		test: []string{"regmem", "regmem/pool", "internal/invariants", "internal/na/natest", "internal/dnstest", "internal/testproc", "internal/tlstest", "margo", "native", "verbs", "verbs/auto", "internal/logtest"},

		modules: []string{modSys}, // mapped files
	},
	"margo": {code: []string{".", "internal/querylimit", "internal/hostquota", "internal/rundown", "internal/hg/wire", "internal/na", "internal/na/ofitcp", "internal/na/sm", "stats", "margo/internal/conf", "internal/audit"}, test: []string{"internal/logtest"}},

	// The service manager of a program with engines.
	"systemd": {code: []string{"."}, modules: []string{modSys}, test: []string{"internal/tlstest", "verbs/auto"}},

	// A page about the engines of a program.
	"debugpage": {code: []string{".", "internal/querylimit", "internal/hostquota"}},

	// RPCs between programs in Go.
	"native": {code: []string{".", "codec", "codec/hgproc", "codes", "internal/codecplan", "internal/envelope", "internal/invariants", "internal/querylimit", "internal/audit", "internal/hostquota"}, test: []string{"verbs/auto", "internal/testproc", "internal/tlstest"}},

	"balance": {code: []string{".", "codes", "internal/invariants", "native"}, test: []string{"internal/dnstest"}},
	// Access lists over RPCs.
	"authz": {code: []string{".", "codes", "identity", "internal/audit"}, test: []string{"native", "internal/tlstest", "verbs/auto", "verbs/iwarp"}},

	// Remote memory over an engine links no package of verbs; over verbs it has a package of its own.
	"rmem/internal/link": {code: []string{"internal/hostquota"}},
	"rmem": {
		code: []string{".", "codec", "codec/hgproc", "rmem/internal/link", "internal/hostmem", "internal/hostquota", "internal/audit"},
		test: []string{"internal/devicetest", "rmem/verbsrmem", "verbs", "verbs/flow", "verbs/verbstest/memdev", "internal/testproc"},

		modules: []string{modSys}, // the bare system call that benchmarks compare with
	},
	"rmem/verbsrmem": {
		code: []string{"rmem", "rmem/internal/link", "verbs", "verbs/flow", "internal/hostquota", "internal/audit"},
		test: []string{"internal/invariants", "internal/devicetest", "verbs/iwarp", "verbs/verbstest/memdev", "internal/testproc"},

		modules: []string{modSys}, // signals that tests send
	},

	// Programs and measurements stand on everything.
	"cmd/cinnabar/internal/cli": {
		code:    []string{"internal/sockio", ".", "identity", "margo", "internal/hostquota", "internal/audit", "systemd", "verbs", "verbs/auto", "verbs/iwarp", "verbs/rdmacore"},
		modules: []string{modCobra, modFlags, modHumanize, modProgress},
	},
	"cmd/cinnabar/internal/clitest": { // helpers of tests, which no code but tests imports
		code:    []string{"internal/testproc", ".", "margo", "cmd/cinnabar/internal/cli", "rmem", "verbs", "verbs/verbstest/memdev"},
		modules: []string{"github.com/google/go-cmp", "go.uber.org/goleak"},
	},
	"cmd/cinnabar/internal/link":     {code: []string{"cmd/cinnabar/internal/cli", "internal/grace", "verbs", "verbs/oob"}, test: []string{"cmd/cinnabar/internal/clitest"}},
	"cmd/cinnabar/internal/peerproc": {code: []string{"cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/link"}, test: []string{"cmd/cinnabar/internal/clitest"}},
	"cmd/cinnabar/internal/demo": {
		code:    []string{".", "margo", "cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/link", "cmd/cinnabar/internal/peerproc", "rmem", "verbs", "verbs/auto", "verbs/oob", "verbs/rdmacore", "xfer"},
		test:    []string{"internal/testproc", "internal/invariants", "cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra},
	},
	"cmd/cinnabar/internal/compare": {
		code:    []string{"cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/link", "cmd/cinnabar/internal/peerproc", "verbs", "verbs/oob"},
		test:    []string{"cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra},
	},
	"cmd/cinnabar/internal/perfrpc": {
		code:    []string{".", "cmd/cinnabar/internal/cli", "codec", "internal/progress", "margo"},
		test:    []string{"internal/testproc", "cmd/cinnabar/internal/clitest", "codec/hgproc"},
		modules: []string{modCobra, modFlags, modHistogram, modSys},
	},
	"cmd/cinnabar/internal/perfverbs": {
		code:    []string{"internal/sockio", "cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/link", "regmem", "regmem/arena", "verbs", "verbs/oob", "verbs/iwarp"},
		test:    []string{"internal/testproc", "internal/invariants", "cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra, modFlags, modHistogram},
	},
	"cmd/cinnabar/internal/pingpong": {
		code:    []string{"cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/link", "verbs", "verbs/oob"},
		test:    []string{"cmd/cinnabar/internal/clitest", "internal/verbsrules", "verbs/verbstest/memdev"},
		modules: []string{modCobra, modFlags},
	},
	"cmd/cinnabar/internal/rping": {
		code:    []string{"cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/link", "verbs"},
		test:    []string{"cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra, modFlags},
	},
	"cmd/cinnabar/internal/lend": {
		code:    []string{".", "cmd/cinnabar/internal/cli", "internal/hostquota", "rmem"},
		test:    []string{"cmd/cinnabar/internal/clitest", "margo"},
		modules: []string{modCobra, modFlags},
	},
	"cmd/cinnabar/internal/onetime": {modules: []string{modRistretto}, code: []string{"internal/hostquota"}},
	"cmd/cinnabar/internal/filexfer": {
		code:    []string{"cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/onetime", "identity", "internal/hostquota", "internal/audit", "verbs", "verbs/iwarp", "systemd", "xfer", "xfer/share", "xfer/tree"},
		test:    []string{"internal/testproc", "internal/invariants", "cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra, modFlags, modProgress, modBLAKE3, modSys},
	},
	"cmd/cinnabar/internal/call": {
		code:    []string{".", "codec", "codec/cereal", "codec/hgproc", "codes", "margo", "native", "cmd/cinnabar/internal/cli"},
		test:    []string{"cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra, modFlags},
	},
	"cmd/cinnabar/internal/doctor": {
		code:    []string{".", "codes", "cmd/cinnabar/internal/cli", "internal/hostmem", "verbs", "verbs/auto", "verbs/iwarp"},
		test:    []string{"internal/testproc", "cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra, modSys},
	},
	"cmd/cinnabar/internal/wire": {
		code:    []string{"cmd/cinnabar/internal/cli", "internal/capture", "internal/hg/wire", "internal/iwarp/...", "internal/na/ofiaddr", "internal/na/ofitcp", "internal/na/ofiverbs", "native", "xfer"},
		test:    []string{"internal/recording", "cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra},
	},
	"cmd/cinnabar/internal/manpage": {
		code:    []string{"cmd/cinnabar/internal/cli"},
		test:    []string{"cmd/cinnabar/internal/clitest"},
		modules: []string{modCobra, modFlags},
	},
	"cmd/cinnabar/internal/inspect": {
		code:    []string{".", "margo", "stats", "cmd/cinnabar/internal/cli", "internal/hostquota", "verbs", "verbs/auto", "xfer"},
		test:    []string{"cmd/cinnabar/internal/clitest", "verbs/rdmacore", "verbs/verbstest/memdev"},
		modules: []string{modCobra, modFlags, modHumanize},
	},
	"cmd/cinnabar/internal/top": {
		code:    []string{".", "cmd/cinnabar/internal/cli", "cmd/cinnabar/internal/inspect"},
		test:    []string{"cmd/cinnabar/internal/clitest", "margo"},
		modules: []string{modCobra, modTerm, modSys},
	},
	"cmd/cinnabar": {
		code:    []string{"cmd/cinnabar/internal/..."},
		test:    []string{".", "identity", "internal/testproc", "internal/tlstest", "margo", "rmem"},
		modules: []string{modCobra, modFlags, modSys}, // terminals and pipes of tests
	},
	"bench/crowd":              {code: []string{"."}, modules: []string{modSys}},
	"bench/internal/machine":   {code: []string{"bench/internal/record"}},
	"bench/internal/record":    {}, // the form of recorded results
	"bench/report":             {code: []string{"bench/internal/record"}},
	"bench/rpc":                {code: []string{".", "bench/internal/machine", "bench/internal/record"}, modules: []string{modSys}},
	"bench/files":              {code: []string{"bench/internal/machine", "bench/internal/record"}, modules: []string{modBLAKE3, modSys}},
	"bench/internal/benchtest": {}, // for the tests of measuring programs
	"bench/rawtcp":             {test: []string{"bench/internal/benchtest"}},
	"bench/hostile": {
		code:    []string{".", "internal/iwarp/...", "internal/shm", "rmem", "rmem/verbsrmem", "verbs", "verbs/auto", "verbs/iwarp", "xfer"},
		modules: []string{modSys},
	},
	"bench/smping":                           {code: []string{"internal/na", "internal/na/sm"}, test: []string{"bench/internal/benchtest"}},
	"examples/internal/enginetest":           {code: []string{"."}}, // for tests of examples
	"examples/sum":                           {code: []string{"."}, test: []string{"examples/internal/enginetest", "internal/testproc"}},
	"examples/internal/rdma":                 {code: []string{"verbs/auto"}}, // for examples
	"examples/sum/server":                    {code: []string{".", "examples/internal/rdma", "examples/sum"}},
	"examples/sum/client":                    {code: []string{".", "examples/internal/rdma", "examples/sum"}},
	"bench":                                  {code: []string{"verbs", "verbs/...", "xfer", "rmem", "rmem/verbsrmem"}, modules: []string{modBLAKE3, modSys}},
	"test/interop":                           {test: []string{"internal/invariants", "internal/na/sm", "internal/testproc", ".", "margo", "internal/recording", "codec/cereal", "codec/hgproc", "internal/codectest", "internal/cerealtest", "verbs", "verbs/auto", "verbs/iwarp"}, modules: []string{modSys}},
	"test/parity":                            {},
	"test/manifests":                         {},
	"test/rdmavm/enginepeer":                 {code: []string{".", "codes", "verbs/auto"}, test: []string{"internal/testproc"}},
	"test/rdmavm/fabricpeer":                 {code: []string{"internal/na", "internal/na/ofiverbs", "verbs", "verbs/iwarp", "verbs/rdmacore"}},
	"test/rdmavm/mixedpeer":                  {code: []string{"verbs", "verbs/rdmacm", "verbs/iwarp", "verbs/rdmacore"}},
	"test/secure":                            {test: []string{".", "identity", "internal/tlstest", "rmem", "rmem/verbsrmem", "verbs", "verbs/auto", "verbs/flow", "verbs/iwarp", "verbs/rstream", "xfer"}},
	"test/powercut":                          {test: []string{"xfer", "xfer/tree"}, modules: []string{modSys}},
	"test/kill":                              {test: []string{"internal/testproc", "verbs", "verbs/iwarp", "xfer"}},
	"examples/margo":                         {code: []string{".", "margo"}, test: []string{"internal/testproc"}},
	"examples/margo/client":                  {code: []string{".", "margo", "examples/margo"}},
	"examples/margo/server":                  {code: []string{".", "margo", "examples/margo"}},
	"examples/margo/multiplex/client":        {code: []string{".", "examples/margo"}},
	"examples/margo/multiplex/server":        {code: []string{".", "examples/margo"}},
	"examples/margo/composition/benchmark":   {code: []string{".", "examples/margo"}},
	"examples/margo/composition/daemon":      {code: []string{".", "examples/margo"}},
	"examples/do_rdma":                       {code: []string{"."}, test: []string{"examples/internal/enginetest", "internal/testproc"}},
	"examples/do_rdma/server":                {code: []string{".", "examples/internal/rdma", "examples/do_rdma"}},
	"examples/do_rdma/client":                {code: []string{".", "examples/internal/rdma", "examples/do_rdma"}},
	"examples/hello":                         {code: []string{"."}, test: []string{"margo"}},
	"examples/hello/client":                  {code: []string{".", "examples/hello"}},
	"examples/hello/server":                  {code: []string{".", "examples/hello"}},
	"examples/stream":                        {code: []string{".", "native"}},
	"examples/service":                       {code: []string{".", "balance", "native"}},
	"examples/webstream":                     {code: []string{"identity", "verbs", "verbs/iwarp", "verbs/rstream"}, test: []string{"internal/tlstest"}},
	"examples/tutorial":                      {test: []string{"internal/testproc"}},
	"examples/tutorial/01":                   tutorial,
	"examples/tutorial/02":                   tutorial,
	"examples/tutorial/03":                   tutorial,
	"examples/tutorial/04":                   tutorial,
	"examples/tutorial/05":                   tutorial,
	"examples/tutorial/06":                   tutorial,
	"examples/tutorial/07":                   tutorial,
	"examples/tutorial/08":                   tutorial,
	"examples/tutorial/09":                   tutorial,
	"examples/tutorial/10":                   tutorial,
	"examples/tutorial/11":                   tutorial,
	"examples/tutorial/12":                   tutorial,
	"examples/tutorial/13":                   tutorial,
	"examples/tutorial/14":                   tutorial,
	"examples/bedeir/rc":                     {code: []string{"verbs", "verbs/rdmacm"}, test: []string{"verbs/iwarp", "verbs/fault"}},
	"examples/filetransfer/internal/journal": {code: []string{"verbs"}},
	"examples/filetransfer/internal/fttest":  {}, // for the tests of both programs
	"examples/filetransfer":                  {code: []string{"verbs", "verbs/iwarp", "verbs/rdmacore"}, test: []string{"internal/testproc", "xfer"}},
	"examples/filetransfer/client":           {code: []string{"examples/filetransfer", "examples/bedeir/rc", "verbs", "verbs/..."}, test: []string{"examples/filetransfer/internal/..."}},
	"examples/filetransfer/server":           {code: []string{"examples/filetransfer", "examples/bedeir/rc", "verbs", "verbs/..."}, test: []string{"examples/filetransfer/internal/..."}},

	// The course.
	"examples/course":                                {test: []string{"internal/testproc"}},
	"examples/course/internal/lab":                   {code: []string{"verbs", "verbs/iwarp"}},
	"examples/course/internal/check":                 {code: []string{"examples/course/internal/lab", "verbs", "verbs/iwarp"}},
	"examples/course/internal/solutions":             {code: []string{"examples/course/internal/lab", "verbs"}, test: []string{"examples/course/..."}},
	"examples/course/01_send_receive":                lesson,
	"examples/course/02_write":                       lesson,
	"examples/course/03_read":                        lesson,
	"examples/course/04_completion":                  lesson,
	"examples/course/01_send_receive/exercise":       exercise,
	"examples/course/02_write/exercise":              exercise,
	"examples/course/03_read/exercise":               exercise,
	"examples/course/04_completion/exercise":         exercise,
	"examples/course/05_keys":                        lesson,
	"examples/course/05_keys/exercise":               exercise,
	"examples/course/06_protection_domains":          lesson,
	"examples/course/06_protection_domains/exercise": exercise,
	"examples/course/07_atomics":                     lesson,
	"examples/course/07_atomics/exercise":            exercise,
	"examples/course/08_flow_control":                lesson,
	"examples/course/08_flow_control/exercise":       exercise,
	"examples/course/09_ring_buffer":                 lesson,
	"examples/course/09_ring_buffer/exercise":        exercise,
	"examples/course/10_allocator":                   lesson,
	"examples/course/10_allocator/exercise":          exercise,
	"examples/course/11_zero_copy":                   lesson,
	"examples/course/11_zero_copy/exercise":          exercise,
	"examples/course/12_transfer":                    lesson,
	"examples/course/12_transfer/exercise":           exercise,
}

// checkArrows compares every import with the table.
func checkArrows(t *tree, table map[string]row) []finding {
	var found []finding
	seen := map[string]bool{}
	for _, f := range t.files {
		if f.syntax == nil || f.nested {
			continue
		}
		r, known := table[f.dir()]
		if !known && !seen[f.dir()] {
			found = append(found, finding{path: f.dir(), text: "package has no row in the table of arrows (internal/lint/arrows.go)"})
		}
		seen[f.dir()] = true
		for _, spec := range f.syntax.Imports {
			if imp := importPath(spec); known && !r.allows(f, imp) {
				found = append(found, finding{f.path, t.line(spec.Pos()), fmt.Sprintf("%s may not import %q", f.dir(), imp)})
			}
		}
	}
	return append(found, staleRows(table, seen)...)
}

// staleRows reports rows without a package.
func staleRows(table map[string]row, seen map[string]bool) []finding {
	var found []finding
	for dir := range table {
		if !seen[dir] {
			found = append(found, finding{path: dir, text: "row of the table of arrows without a package"})
		}
	}
	slices.SortFunc(found, func(a, b finding) int { return strings.Compare(a.path, b.path) })
	return found
}

// allows reports whether f, of the package that r describes, may import imp.
func (r row) allows(f *file, imp string) bool {
	own, isOwn := ownPackage(imp)
	switch {
	case isOwn && own == f.dir():
		return f.isTest() // an external test imports the package that it tests
	case isOwn && slices.Contains(withRoot, own) && (matchAny(r.code, ".") || f.isTest() && matchAny(r.test, ".")):
		return true
	case isOwn:
		return matchAny(r.code, own) || f.isTest() && matchAny(r.test, own)
	case isStandard(imp):
		return true
	}
	return underAny(r.modules, imp) || f.isTest() && underAny(testModules, imp)
}

// ownPackage returns the directory of a package of this module.
func ownPackage(imp string) (dir string, ok bool) {
	if imp == modulePath {
		return ".", true
	}
	return strings.CutPrefix(imp, modulePath+"/")
}

// isStandard reports whether imp belongs to the standard library: its first element has no dot, since it is no host.
func isStandard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func matchAny(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "..."); ok {
			return strings.HasPrefix(dir, prefix)
		}
		return p == dir
	})
}

func underAny(modules []string, imp string) bool {
	return slices.ContainsFunc(modules, func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") })
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil { // the parser has accepted it
		return spec.Path.Value
	}
	return p
}
