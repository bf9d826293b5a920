package lint

import (
	"fmt"
	"path"
	"strings"
	"testing"
	"testing/fstest"
)

// findingsIn runs a rule over a tree made of the given files and returns what it finds, one finding per line.
func findingsIn(t *testing.T, rule func(*tree) []finding, files map[string]string) string {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(data)}
	}
	tr, err := load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range rule(tr) {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}

// ruleCase is a tree and what a rule says about it: want is a part of the only finding, or "" for none.
type ruleCase struct {
	name  string
	files map[string]string
	want  string
}

func runCases(t *testing.T, rule func(*tree) []finding, cases []ruleCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := findingsIn(t, rule, c.files)
			if c.want == "" && got != "" {
				t.Errorf("found %q in a tree that keeps the rule", got)
			}
			if c.want != "" && (strings.Count(got, "\n") != 1 || !strings.Contains(got, c.want)) {
				t.Errorf("found %q, want one finding with %q", got, c.want)
			}
		})
	}
}

func goFile(name, body string) map[string]string {
	return map[string]string{name: body}
}

func TestRuleLayers(t *testing.T) {
	table := map[string]row{
		"low":  {modules: []string{modSys}},
		"high": {code: []string{"low/..."}, test: []string{"side"}},
	}
	rule := func(tr *tree) []finding {
		kept := map[string]row{}
		for dir, r := range table {
			if tr.hasDir(dir) {
				kept[dir] = r
			}
		}
		return checkArrows(tr, kept)
	}
	runCases(t, rule, []ruleCase{
		{"standard library", goFile("low/a.go", "package low\nimport \"net/http\""), ""},
		{"allowed module", goFile("low/a.go", "package low\nimport \"golang.org/x/sys/unix\""), ""},
		{"prefix is not a path", goFile("low/a.go", "package low\nimport \"golang.org/x/system\""), "may not import"},
		{"other module", goFile("low/a.go", "package low\nimport \"example.com/x\""), "low/a.go:2: low may not import"},
		{"upwards", goFile("low/a.go", "package low\nimport \"cinnabar/high\""), "may not import"},
		{"below a pattern", goFile("high/a.go", "package high\nimport \"cinnabar/low/x\""), ""},
		{"test arrow in code", goFile("high/a.go", "package high\nimport \"cinnabar/side\""), "may not import"},
		{"test arrow in a test", goFile("high/a_test.go", "package high\nimport \"cinnabar/side\""), ""},
		{"test library in code", goFile("low/a.go", "package low\nimport \"pgregory.net/rapid\""), "may not import"},
		{"test library in a test", goFile("low/a_test.go", "package low\nimport \"pgregory.net/rapid\""), ""},
		{"external test", goFile("low/a_test.go", "package low_test\nimport \"cinnabar/low\""), ""},
		{"unknown package", goFile("new/a.go", "package new\nimport \"fmt\""), "new: package has no row"},
		{"nested module", map[string]string{"n/go.mod": "module n", "n/a.go": "package n\nimport \"example.com/x\""}, ""},
	})
}

func TestRuleStaleRow(t *testing.T) {
	rule := func(tr *tree) []finding { return checkArrows(tr, map[string]row{"gone": {}}) }
	runCases(t, rule, []ruleCase{{"row without package", nil, "gone: row of the table"}})
}

// reached returns the packages that dir may import, directly or through others.
func reached(dir string) map[string]bool {
	all := map[string]bool{}
	for next := []string{dir}; len(next) > 0; next = next[1:] {
		for to := range layers {
			if !all[to] && matchAny(layers[next[0]].code, to) {
				all[to] = true
				next = append(next, to)
			}
		}
	}
	return all
}

// A program that uses only an engine links no package of verbs.
func TestEngineWithoutVerbs(t *testing.T) {
	for _, dir := range []string{".", "margo", "rmem"} {
		for to := range reached(dir) {
			if to == "verbs" || strings.HasPrefix(to, "verbs/") {
				t.Errorf("%s may import %s through others", dir, to)
			}
		}
	}
	if !reached("rmem/verbsrmem")["verbs"] {
		t.Error("rmem/verbsrmem reaches no verbs: the test sees too little")
	}
}

// What the layers promise must not be lost in an edit of the table.
func TestLayersPromises(t *testing.T) {
	for _, device := range []string{"verbs/iwarp", "verbs/fault"} {
		if matchAny(layers["verbs"].code, device) {
			t.Errorf("verbs may import the device %s", device)
		}
	}
	for dir, r := range layers {
		protocol := strings.HasPrefix(dir, "internal/iwarp/")
		for _, imp := range r.code {
			if protocol && !strings.HasPrefix(imp, "internal/iwarp/") {
				t.Errorf("%s may import %s; protocol packages stand on the standard library and each other", dir, imp)
			}
		}
		for _, mod := range r.modules {
			if library := !strings.HasPrefix(dir, "cmd/") && dir != "bench" && dir != "bench/files"; library && mod != modSys {
				t.Errorf("%s may import %s; a library stands on the standard library and %s", dir, mod, modSys)
			}
		}
	}
}

func TestRuleCorners(t *testing.T) {
	const src = "package p\nimport \"unsafe\""
	runCases(t, checkCorners, []ruleCase{
		{"named", goFile("internal/hostmem/map_unsafe.go", src), ""},
		{"platform after", goFile("internal/hostmem/map_unsafe_linux.go", src), ""},
		{"platform before", goFile("internal/sockio/sock_linux_unsafe.go", src), ""},
		{"test", goFile("internal/sockio/sock_unsafe_test.go", src), ""},
		{"unnamed", goFile("internal/hostmem/map.go", src), "ends in _unsafe.go"},
		{"word inside", goFile("internal/hostmem/unsafe_map_x_linux.go", src), "ends in _unsafe.go"},
		{"elsewhere", goFile("verbs/mr_unsafe.go", src), "allowed only in"},
		{"cgo", goFile("verbs/a.go", "package p\nimport \"C\""), "cgo"},
		{"cgo in its package", goFile("verbs/rdmacore/a_cgo.go", "package p\nimport \"C\"\nimport \"unsafe\""), ""},
		{"cgo unnamed", goFile("verbs/rdmacore/a.go", "package p\nimport \"C\""), "end in _cgo.go"},
		{"unsafe beside cgo", goFile("verbs/rdmacore/a_unsafe.go", src), "allowed only in"},
	})
}

func TestRuleSource(t *testing.T) {
	runCases(t, checkDocComments, []ruleCase{
		{"package", goFile("a/doc.go", "// Package a is one.\npackage a\n"), ""},
		{"command", goFile("cmd/a/main.go", "// Command a does.\npackage main\n"), ""},
		{"in another file", map[string]string{"a/a.go": "package a\n", "a/doc.go": "// Package a is one.\npackage a\n"}, ""},
		{"tests only", goFile("a/a_test.go", "// Package a is one.\npackage a_test\n"), ""},
		{"missing", goFile("a/a.go", "package a\n"), "a: package a has no doc comment"},
		{"detached", goFile("a/a.go", "// Package a is one.\n\npackage a\n"), "no doc comment"},
	})
	runCases(t, checkFormat, []ruleCase{
		{"formatted", goFile("a.go", "package a\n\nvar x = 1\n"), ""},
		{"not", goFile("a.go", "package a\nvar  x = 1\n"), "a.go: not formatted"},
	})
	runCases(t, checkLength, []ruleCase{
		{"limit", goFile("a.go", "package a\n"+strings.Repeat("\n", maxLines-1)), ""},
		{"one more", goFile("a.go", "package a\n"+strings.Repeat("\n", maxLines)), "801 lines"},
		{"no source", goFile("a.md", strings.Repeat("\n", maxLines+1)), ""},
	})
	const sleeper = "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }\n"
	runCases(t, checkSleeps, []ruleCase{
		{"sleep", goFile("a.go", sleeper), "a.go:3: time.Sleep"},
		{"after", goFile("a.go", strings.Replace(sleeper, "Sleep", "After", 1)), "time.After"},
		{"in a test", goFile("a_test.go", sleeper), ""},
		{"timer", goFile("a.go", strings.Replace(sleeper, "Sleep", "NewTimer", 1)), ""},
	})
}

func TestRuleLocks(t *testing.T) {
	const locker = "package a\nimport \"sync\"\ntype t struct { mu sync.Mutex }\n"
	runCases(t, checkLocks, []ruleCase{
		{"mutex", goFile("internal/sched/a.go", locker), "internal/sched/a.go:3: sync.Mutex"},
		{"reader", goFile("a.go", strings.Replace(locker, "Mutex", "RWMutex", 1)), "sync.RWMutex"},
		{"elsewhere", goFile("regmem/a.go", locker), ""},
		{"test", goFile("a_test.go", locker), ""},
		{"group", goFile("a.go", strings.Replace(locker, "Mutex", "WaitGroup", 1)), ""},
	})
}

func TestRuleSizes(t *testing.T) {
	files := func(dir string, n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[path.Join(dir, fmt.Sprintf("f%d.go", i))] = "package p\n"
			m[path.Join(dir, fmt.Sprintf("f%d_test.go", i))] = "package p\n"
		}
		return m
	}
	runCases(t, checkFileCounts, []ruleCase{
		{"limit", files("a", maxFiles), ""},
		{"one more", files("a", maxFiles+1), "a: 41 files"},
		{"root", files(".", maxFiles+1), ""},
	})
	constants := func(n int) string {
		b := "package p\n"
		for i := range n {
			b += fmt.Sprintf("const C%d = 1\n", i)
		}
		return b
	}
	const five = "type T struct{ F int }\nfunc (*T) M() {}\ntype I interface{ N() }\nfunc (t) Hidden() {}\ntype t struct{ G int }\nvar V, w int\n" // T, T.M, I, I.N, V
	runCases(t, checkRoot, []ruleCase{
		{"limits", files(".", maxRootFiles), ""},
		{"one file more", files(".", maxRootFiles+1), "cinnabar: 31 files"},
		{"symbols", goFile("a.go", constants(maxRootSymbols-5)+five), ""},
		{"one symbol more", goFile("a.go", constants(maxRootSymbols-4)+five), "cinnabar: 131 exported symbols"},
		{"of two systems", map[string]string{"a.go": constants(maxRootSymbols), "b.go": constants(maxRootSymbols)}, ""},
		{"other package", goFile("a/a.go", constants(maxRootSymbols+1)), ""},
	})
}

func TestRuleProofs(t *testing.T) {
	with := func(page string) map[string]string {
		return map[string]string{"SECURITY.md": page, "a/b_test.go": "package a\nfunc TestThere() {}\n", "c_test.go": "package c\nfunc FuzzRoot() {}\n"}
	}
	runCases(t, checkProofs, []ruleCase{
		{"there", with("held (`a.TestThere`, `cinnabar.FuzzRoot`)"), ""},
		{"gone", with("\nheld (`a.TestGone`)"), "SECURITY.md:2: there is no test a.TestGone"},
		{"elsewhere", with("held (`b.TestThere`)"), "there is no test b.TestThere"},
		{"in the manual", map[string]string{"SECURITY.md": "", "docs/m.md": "\n`a.ExampleGone`"}, "docs/m.md:2: there is no test a.ExampleGone"},
		{"no page", map[string]string{"a.md": ""}, "the page is missing"},
	})
}

func TestRuleLinks(t *testing.T) {
	with := func(line string) map[string]string {
		return map[string]string{
			"docs/a.md":     line,
			"docs/b.md":     "# The `b` page\n\n## One, two\n## One, two\n```text\n## Not one\n```\n",
			"examples/x.go": "package x\n",
		}
	}
	runCases(t, checkLinks, []ruleCase{
		{"page", with("[b](b.md), [code](../examples/x.go), [folder](../examples), [web](https://example.org/x)"), ""},
		{"heading", with("[b](b.md#the-b-page), [b](b.md#one-two-1)"), ""},
		{"own heading", with("## Here\n[up](#here)"), ""},
		{"no page", with("\n[b](c.md)"), "docs/a.md:2: link to c.md, which does not exist"},
		{"no heading", with("[b](b.md#three)"), "docs/b.md has no such heading"},
		{"heading of code", with("[b](b.md#not-one)"), "no such heading"},
		{"no own heading", with("[b](#three)"), "docs/a.md has no such heading"},
		{"code in a line", with("`NewRPC[In, Out](name)`"), ""},
		{"picture", with("![p](pictures/p.svg)"), "link to pictures/p.svg"},
		{"code", with("```text\n[b](c.md)\n```"), ""},
	})
}

func TestRuleManual(t *testing.T) {
	const page = "# A\n\nAfter this page you can read.\n"
	with := func(index, a string) map[string]string {
		return map[string]string{manualIndex: page + index, "docs/a.md": a}
	}
	runCases(t, checkManual, []ruleCase{
		{"good", with("[a](a.md)", page), ""},
		{"other opening", with("[a](a.md)", "# A\n\nThis page is about A.\n"), "docs/a.md:3: the page does not begin"},
		{"empty", with("[a](a.md)", ""), "does not begin"},
		{"not in the index", with("", page), "has no link to the page"},
		{"parity", map[string]string{manualIndex: page, parityFile: "# Features\n"}, ""},
		{"no index", goFile("docs/a.md", page), "docs/README.md: missing"},
	})
}

func TestRuleWalks(t *testing.T) {
	const src = "package hg\ntype Call[T any] struct{ mu int }\ntype Op interface{ Done() }\nfunc (c *Call[T]) Start() {}\nfunc New() {}\n"
	with := func(line string) map[string]string { return map[string]string{walkPage: line, "internal/hg/a.go": src} }
	runCases(t, checkWalks, []ruleCase{
		{"declared", with("| `hg.New`, `hg.Call.Start` | `hg.Call.mu` | `hg.Op.Done`, `hg.Call` |"), ""},
		{"no such method", with("\n| `hg.Call.Stop` |"), "docs/request.md:2: hg.Call.Stop is not declared"},
		{"no such package", with("`ha.New`"), "ha.New is not declared"},
		{"other code", with("`.ci/run fast`, `Call.Start`, `docs/a.md`"), ""},
		{"missing page", goFile("a.go", "package a"), "docs/request.md: missing"},
	})
}

func TestRuleNames(t *testing.T) {
	with := func(line string) map[string]string {
		return map[string]string{
			"docs/a.md":        line,
			"root.go":          "package cinnabar\ntype Engine struct{ Config }\nfunc (*Engine) Close() {}\ntype Config struct{ Pools int }\n",
			"codes/a.go":       "package codes\nconst NoEntry = 1\n",
			"verbs/a.go":       "package verbs\ntype Config struct{ Depth int }\n",
			"internal/hg/a.go": "package hg\nfunc Hidden() {}\n",
			"cmd/tool/main.go": "package main\n",
			"verbs/a_test.go":  "package verbs\nfunc OfTest() {}\n",
		}
	}
	runCases(t, checkNames, []ruleCase{
		{"there", with("`cinnabar.Engine`, `<-Engine.Close()`, `errors.Is(err, codes.NoEntry)`, `Config.Depth`, `Config.Pools`"), ""},
		{"other module", with("`slog.Handler.Enabled`, `margo_init`, `docs/Engine.md`, `io.Reader`"), ""},
		{"unknown type", with("`Other.Close`"), ""},
		{"variable with the name of an example", map[string]string{"docs/a.md": "`sum.Call`, `Loop.Run`", "examples/sum/a.go": "package sum\ntype Loop struct{ Run int }\n"}, ""},
		{"test", with("`verbs.TestThere`"), ""},
		{"gone from its package", with("\n`cinnabar.NoEntry`"), "docs/a.md:2: cinnabar.NoEntry is not exported"},
		{"no such member", with("`Engine.Open`"), "Engine.Open is not exported"},
		{"no such member of a package", with("`cinnabar.Engine.Open`"), "Engine.Open is not exported"},
		{"of no Config", with("`Config.Gone`"), "Config.Gone is not exported"},
		{"of a test", with("`verbs.OfTest`"), "verbs.OfTest is not exported"},
		{"no page of the manual", map[string]string{"docs/adr/a.md": "`cinnabar.Gone`", "a.go": "package cinnabar\n"}, ""},
	})
}

func TestRuleText(t *testing.T) {
	runCases(t, checkMarkers, []ruleCase{
		{"marker", goFile("a.md", "\n<!-- TO"+"DO: more -->"), "a.md:2: TO"},
		{"part of a word", goFile("a.md", "mas"+"TO"+"DON"), ""},
		{"test data", goFile("testdata/a.md", "TO"+"DO"), ""},
	})
	runCases(t, checkPaths, []ruleCase{
		{"home", goFile("a.sh", "cd /"+"home/me/src"), "path of one machine: /home/"},
		{"quoted", goFile("a.go", "package a\n\nvar x = \"/"+"builds/x\"\n"), "/builds/"},
		{"system", goFile("a.sh", "cat /proc/net/tcp /dev/null"), ""},
		{"URL", goFile("a.md", "https://www.rfc-editor.org/rfc/rfc5040"), ""},
		{"alternatives", goFile("a.md", "send/recv and read/write"), ""},
	})
	runCases(t, checkHosts, []ruleCase{
		{"proxy", goFile("a.md", "from proxy."+"example.org, say"), "proxy."},
		{"word", goFile("a.md", "through a proxy. Then"), ""},
	})
	runCases(t, checkRowIDs, []ruleCase{
		{"in code", goFile("a.go", "package a\n\n// V"+"22: arm\n"), "a.go:3: feature id"},
		{"in the table", goFile(parityFile, "| V"+"22 | x |"), ""},
		{"in the rows", goFile("test/parity/rows.tsv", "V"+"22\tMUST"), ""},
		{"marker", goFile("a.go", "package a\n\n// parity(vm): V"+"22 S"+"01"), ""},
		{"marker of a script", goFile("a", "# parity(slow): V"+"22"), ""},
		{"hex", goFile("a.md", "B10 D45"), ""},
	})
}

const goodReadme = "```sh\ngo run ./cmd/cinnabar demo\n```\n```sh\ngo test ./...\n```\n"

func TestRuleReadme(t *testing.T) {
	with := func(readme string) map[string]string { return map[string]string{readmeFile: readme} }
	runCases(t, checkReadme, []ruleCase{
		{"good", with(goodReadme), ""},
		{"missing file", nil, "README.md: missing"},
		{"changed command", with(strings.Replace(goodReadme, "go test", "go test -v", 1)), `line "go test ./..."`},
		{"command outside sh", with(strings.Replace(goodReadme, "```sh\ngo test", "```go\ngo test", 1)), `line "go test ./..."`},
	})
}

func TestRuleShellPages(t *testing.T) {
	with := func(more string) map[string]string {
		files := map[string]string{"cmd/cinnabar/main.go": "package main\n"}
		for _, page := range shellPages {
			files[page] = "words"
			files[ciRun] += "\t.ci/readme " + page + "\n"
		}
		files[readmeFile] = goodReadme + more
		return files
	}
	without := func(page string) map[string]string {
		files := with("")
		delete(files, page)
		return files
	}
	other := func(page, text string) map[string]string {
		files := with("")
		files[page] = text
		return files
	}
	runCases(t, checkShellPages, []ruleCase{
		{"good", with(""), ""},
		{"page that CI does not run", other(ciRun, strings.Replace(with("")[ciRun], "readme "+shellPages[1], "", 1)), ".ci/run: no line .ci/readme " + shellPages[1]},
		{"shell block on another page", other("docs/other.md", "words\n```sh\nls\n```\n"), "docs/other.md:2: a shell block on a page that CI does not run; add the page to shellPages and to .ci/run"},
		{"page of the course", other("docs/course/1.md", "```sh\nls\n```\n"), ""},
		{"server", with("```sh server=7174\ngo run ./cmd/cinnabar rping -s\n```\n"), ""},
		{"no such package", with("```sh\ngo run ./cmd/other\n```\n"), "README.md:8: no package at ./cmd/other"},
		{"hidden command", with("```text\n$ make\n```\n"), "README.md:8: command in a text block"},
		{"unknown fence", with("```console\nx\n```\n"), `README.md:7: fence info "console"`},
		{"missing page", without(shellPages[1]), shellPages[1] + ": missing"},
	})
}

func TestRuleVerbsPage(t *testing.T) {
	with := func(src string) map[string]string {
		return map[string]string{verbsPage: "| `length` | `Length`, `WC.Err` | OpSend in words |", verbsValues + "/a.go": "package verbs\n" + src}
	}
	runCases(t, checkVerbsPage, []ruleCase{
		{"told", with("type SGE struct{ Length int }"), ""},
		{"other type", with("type Caps struct{ Some int }"), ""},
		{"untold field", with("type SGE struct{ Length, LKey int }"), "verbs/a.go:2: LKey is missing"},
		{"untold constant", with("const OpSend Opcode = 1"), "OpSend is missing"},
		{"by iota", with("const (\nLength Access = iota\nOther\n)"), "Other is missing"},
		{"other constant", with("const Most = 1"), ""},
		{"missing page", goFile("a.go", "package a"), "docs/verbs.md: missing"},
	})
}

func TestRuleProse(t *testing.T) {
	plain := strings.Repeat("The connection reads one message. ", 200) // 1,000 words
	const twice = "// W waits for whoever calls, and tells nobody.\n"
	runCases(t, checkProse, []ruleCase{
		{"plain", goFile("a/a.go", "// Package a reads. "+plain+"\npackage a\n"), ""},
		{"one riddle in a thousand words", goFile("a/a.go", "// Package a is read by whom? "+plain+"\npackage a\n"), ""},
		{"riddles in a comment", goFile("a/a.go", "// Package a reads. "+plain+"\npackage a\n\n"+twice+"func W() {}\n"), "(a 3)"},
		{"riddles that are quoted", goFile("a/a.go", "// Package a reads. "+plain+"\npackage a\n\n// prose:quote\n"+twice+"func W() {}\n"), ""},
		{"riddles in a text", goFile("a/a.go", "// Package a reads. "+plain+"\npackage a\n\nconst c = \"who told whom\"\n"), "(a 3)"},
		{"riddles in a test", goFile("a/a_test.go", "// Package a reads. "+plain+"\npackage a\n\n"+twice+"func W() {}\n"), ""},
		{"riddles in a page", goFile("a.md", plain+"\n\nWhat nobody tells.\n"), "(. 3)"},
		{"riddles in code of a page", goFile("a.md", plain+"\n```\nWhat nobody tells.\n```\n"), ""},
	})
}
