package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/prometheus/client_golang/prometheus"
)

// query is a query of the dashboard, with the variables of Grafana replaced by values.
type query struct {
	panel, expr, legend string
}

// dashboard is the part of Grafana's file that the tests read.
type dashboard struct {
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			Expr   string `json:"expr"`
			Legend string `json:"legendFormat"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name, Type, Definition string
		} `json:"list"`
	} `json:"templating"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile("dashboard.json")
	must(t, err)
	must(t, json.Unmarshal(data, &d))
	return d
}

// queries returns all queries of the dashboard.
func (d *dashboard) queries() (list []query) {
	values := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			list = append(list, query{p.Title, values.Replace(target.Expr), target.Legend})
		}
	}
	return list
}

// exported returns the labels of each metric of a collector, by the names that its series have in Prometheus.
func exported(c *Collector) map[string][]string {
	all := map[string][]string{}
	for i := range families {
		all[families[i].name] = families[i].labels
	}
	descs := make(chan *prometheus.Desc, len(families)+32)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		m := fqName.FindStringSubmatch(d.String())
		if _, known := all[m[1]]; known {
			continue
		}
		labels := strings.Split(m[2], ",")
		all[m[1]] = labels
		if strings.HasSuffix(m[1], "_seconds") {
			all[m[1]+"_bucket"] = append(slices.Clone(labels), "le")
			all[m[1]+"_count"], all[m[1]+"_sum"] = labels, labels
		}
	}
	return all
}

var (
	fqName     = regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{([a-z,]*)\}`)
	legendName = regexp.MustCompile(`\{\{([^}]*)\}\}`)
	definition = regexp.MustCompile(`^label_values\(([a-z_]+), ([a-z]+)\)$`)
)

// ofTarget are the labels that Prometheus adds to every series.
var ofTarget = []string{"job", "instance"}

// TestDashboard parses each query of the dashboard, and looks up its metrics and labels.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	metrics := exported(New(nil))
	queries := d.queries()
	if len(queries) < 30 {
		t.Errorf("the dashboard has %d queries", len(queries))
	}
	used := map[string]bool{}
	for _, q := range queries {
		if strings.Contains(q.expr, "$") {
			t.Errorf("%s: %s has a variable that the test does not know", q.panel, q.expr)
		}
		e, err := metricsql.Parse(q.expr)
		if err != nil {
			t.Errorf("%s: %s: %v", q.panel, q.expr, err)
			continue
		}
		for _, fault := range faults(e, q, metrics, used) {
			t.Errorf("%s: %s: %s", q.panel, q.expr, fault)
		}
	}
	for name, labels := range metrics {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
		if used[name] || used[base] || used[base+"_bucket"] || used[base+"_count"] || slices.Contains(unused, name) {
			continue
		}
		t.Errorf("the dashboard does not show %s %v", name, labels)
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := definition.FindStringSubmatch(v.Definition)
		if m == nil || metrics[m[1]] == nil && !slices.ContainsFunc(families, func(f family) bool { return f.name == m[1] }) || !slices.Contains(ofTarget, m[2]) {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
		}
	}
}

// unused are the metrics that the dashboard leaves out.
var unused = []string{
	"cinnabar_requests_sent_shared_memory_total", "cinnabar_requests_overflow_total", "cinnabar_responses_overflow_total", "cinnabar_self_calls_total", "cinnabar_acks_missing_total",
	"cinnabar_calls_in_flight", "cinnabar_requests_in_flight", "cinnabar_transfers_in_flight", "cinnabar_bulk_transfers_total", "cinnabar_bulk_bounced_bytes_total",
	"cinnabar_bulk_eager_copies_total", "cinnabar_bulk_local_copies_total", "cinnabar_registered_rpcs", "cinnabar_registered_providers", "cinnabar_pool_handlers_peak",
	"cinnabar_progress_yields_total", "cinnabar_progress_hand_overs_total",
}

// faults returns the faults of the metrics and labels of a query, and records the metrics in used.
func faults(e metricsql.Expr, q query, metrics map[string][]string, used map[string]bool) (list []string) {
	known := slices.Clone(ofTarget) // labels of the metrics of the query
	var grouped []string
	metricsql.VisitAll(e, func(e metricsql.Expr) {
		switch e := e.(type) {
		case *metricsql.MetricExpr:
			for _, filters := range e.LabelFilterss {
				if len(filters) == 0 || filters[0].Label != "__name__" {
					list = append(list, "a selector without a name")
					continue
				}
				labels, exists := metrics[filters[0].Value]
				if !exists {
					list = append(list, "there is no metric "+filters[0].Value)
				}
				used[filters[0].Value] = true
				known = append(known, labels...)
				for _, f := range filters[1:] {
					if !slices.Contains(labels, f.Label) && !slices.Contains(ofTarget, f.Label) {
						list = append(list, filters[0].Value+" has no label "+f.Label)
					}
				}
			}
		case *metricsql.ModifierExpr:
			grouped = append(grouped, e.Args...)
		}
	})
	for _, name := range grouped {
		if !slices.Contains(known, name) {
			list = append(list, "no metric has the label "+name)
		}
	}
	for _, m := range legendName.FindAllStringSubmatch(q.legend, -1) {
		if !slices.Contains(known, m[1]) || len(grouped) > 0 && !slices.Contains(grouped, m[1]) {
			list = append(list, "the result has no label "+m[1])
		}
	}
	return list
}

// TestDashboardFaults: the check finds names that do not exist.
func TestDashboardFaults(t *testing.T) {
	metrics := exported(New(nil))
	for expr, want := range map[string]string{
		`sum(rate(cinnabar_nosuch_total[5m]))`:   "no metric cinnabar_nosuch_total",
		`cinnabar_rpc_in_flight{peer="x"}`:       "no label peer",
		`sum by (pool) (cinnabar_rpc_in_flight)`: "label pool",
		`{rpc="x"}`:                              "without a name",
		`sum by (rpc) (rate(cinnabar_rpc_duration_seconds_bucket{job="x",le="1"}[5m]))`: "",
	} {
		e, err := metricsql.Parse(expr)
		must(t, err)
		got := strings.Join(faults(e, query{}, metrics, map[string]bool{}), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

// TestDashboardLayout: panels have ids of their own, lie within the 24 columns of Grafana, and cover none of each other.
func TestDashboardLayout(t *testing.T) {
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q at %+v", p.ID, p.Title, p.GridPos)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if cells[cell] != "" {
					t.Fatalf("%q covers %q", p.Title, cells[cell])
				}
				cells[cell] = p.Title
			}
		}
	}
}
