package main

import (
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// point is the median of a figure, with its least and greatest value. All are above 0.
type point struct{ x, y, low, high float64 }

// series is the points of a line, with rising x, or of one colour in groups.
type series struct {
	name   string
	points []point
}

// chart is one picture. With groups the x of a point is the number of its group; otherwise lines connect the points. There are no bars,
// because on a logarithmic scale their lengths mean nothing.
type chart struct {
	file, title    string
	source         []string // lines below the picture
	xLabel, yLabel string
	xText, yText   func(float64) string
	series         []series
	groups         []string
}

// add adds a series unless it has no points. Of several points with the same x the first one counts.
func (c *chart) add(s series) {
	var points []point
	for _, p := range s.points {
		if !slices.ContainsFunc(points, func(q point) bool { return q.x == p.x }) {
			points = append(points, p)
		}
	}
	if len(points) > 0 {
		c.series = append(c.series, series{s.name, sortPoints(points)})
	}
}

// empty reports whether there is nothing to draw: a line takes two points.
func (c *chart) empty() bool {
	for _, s := range c.series {
		if len(s.points) > 1 || len(s.points) == 1 && len(c.groups) > 0 {
			return false
		}
	}
	return true
}

// Sizes of a picture in pixels. A character is at most charWidth wide in the font of labels, and titleWidth in that of the title.
const (
	width, height           = 760, 460
	left, right             = 78, 24
	top, bottom             = 84, 96
	charWidth, titleWidth   = 7.2, 9.6
	textHeight              = 15
	plotWidth, plotHeight   = width - left - right, height - top - bottom
	maxSeries, maxTextChars = 6, (width - 2*margin) * 10 / 72
	margin                  = 16
)

// axis is a logarithmic scale: from has the position 0, to the position 1.
type axis struct{ from, to float64 }

func (a axis) at(v float64) float64 { return math.Log(v/a.from) / math.Log(a.to/a.from) }

// steps are the marks in a decade.
var steps = []float64{1, 2, 5}

// scale returns an axis that begins and ends at a mark, and its marks, at most nine.
func scale(least, most float64) (axis, []float64) {
	var marks []float64
	for e := math.Floor(math.Log10(least)); e <= math.Ceil(math.Log10(most)); e++ {
		for _, s := range steps {
			marks = append(marks, s*math.Pow(10, e))
		}
	}
	const slack = 1e-9 // of a value that is a mark
	first, last := 0, len(marks)-1
	for first+1 < len(marks) && marks[first+1] <= least*(1+slack) {
		first++
	}
	for last > first+1 && marks[last-1] >= most*(1-slack) {
		last--
	}
	marks = marks[first : last+1]
	a := axis{marks[0], marks[len(marks)-1]}
	const most9 = 9
	if len(marks) > most9 {
		marks = slices.DeleteFunc(slices.Clone(marks), func(m float64) bool {
			e := math.Log10(m)
			return math.Abs(e-math.Round(e)) > slack
		})
	}
	for len(marks) > most9 { // of many decades every second one
		var half []float64
		for i := 0; i < len(marks); i += 2 {
			half = append(half, marks[i])
		}
		marks = half
	}
	return a, marks
}

// bounds returns the least and the greatest y of all points, and the different x.
func (c *chart) bounds() (least, most float64, xs []float64) {
	least, most = math.Inf(1), 0
	for _, s := range c.series {
		for _, p := range s.points {
			least, most = min(least, p.low), max(most, p.high)
			xs = append(xs, p.x)
		}
	}
	slices.Sort(xs)
	return least, most, slices.Compact(xs)
}

// draw writes the picture.
func (c *chart) draw(w io.Writer) error {
	least, most, xs := c.bounds()
	if c.empty() || least <= 0 {
		return errors.New("a chart takes two points above 0 of one line, or one in a group")
	}
	if len(c.series) > maxSeries {
		return fmt.Errorf("%d lines; at most %d have colours", len(c.series), maxSeries)
	}
	p := &picture{}
	p.begin(c)
	y, marks := scale(least, most)
	p.rules(c, y, marks)
	if len(c.groups) > 0 {
		p.inGroups(c, y)
	} else {
		p.lines(c, xs, y)
	}
	p.legend(c)
	p.b.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.b.String())
	return err
}

// picture is an SVG file in the making.
type picture struct{ b strings.Builder }

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// text writes a text that ends, begins or has its middle at x. It is cut if the picture has no room for it.
func (p *picture) text(class string, x, y float64, anchor, text string) {
	p.printf(`<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`, class, pixel(x), pixel(y), anchor, clean(text))
}

// clean makes a text of a file safe for the picture: printable, escaped, and no longer than a line of it.
func clean(text string) string {
	runes := []rune(text)
	if len(runes) > maxTextChars {
		runes = append(runes[:maxTextChars-1], '…')
	}
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = '?'
		}
	}
	return html.EscapeString(string(runes))
}

// pixel returns a coordinate with one decimal.
func pixel(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// style has the colours for light and dark pages. The first colour is that of cinnabar.
const style = `<style>
svg { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.page { fill: #ffffff; } text { fill: #24292f; } .title { font-size: 16px; font-weight: 600; } .small { font-size: 12px; fill: #57606a; }
.rule { stroke: #d0d7de; stroke-width: 1; } .frame { stroke: #57606a; stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; } .span { stroke-width: 1.5; opacity: 0.55; }
.s0 { stroke: #c1272d; } .f0 { fill: #c1272d; } .s1 { stroke: #0969da; } .f1 { fill: #0969da; } .s2 { stroke: #1a7f37; } .f2 { fill: #1a7f37; }
.s3 { stroke: #8250df; } .f3 { fill: #8250df; } .s4 { stroke: #9a6700; } .f4 { fill: #9a6700; } .s5 { stroke: #57606a; } .f5 { fill: #57606a; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; } .rule { stroke: #30363d; } .frame { stroke: #9198a1; }
.s0 { stroke: #ff7b72; } .f0 { fill: #ff7b72; } .s1 { stroke: #58a6ff; } .f1 { fill: #58a6ff; } .s2 { stroke: #56d364; } .f2 { fill: #56d364; }
.s3 { stroke: #bc8cff; } .f3 { fill: #bc8cff; } .s4 { stroke: #e3b341; } .f4 { fill: #e3b341; } .s5 { stroke: #9198a1; } .f5 { fill: #9198a1; }
}
</style>`

func (p *picture) begin(c *chart) {
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`, width, height, width, height, clean(c.title))
	p.printf("%s", style)
	p.printf("<title>%s</title>", clean(c.title))
	p.printf(`<rect class="page" x="0" y="0" width="%d" height="%d"/>`, width, height)
	p.text("title", margin, 28, "start", c.title)
	p.text("small", margin, top-10, "start", c.yLabel)
	p.text("small", left+plotWidth/2, top+plotHeight+2*textHeight+10, "middle", c.xLabel)
	for i, line := range c.source {
		p.text("small", margin, float64(height-margin-textHeight*(len(c.source)-1-i)), "start", line)
	}
	p.printf(`<rect class="frame" x="%d" y="%d" width="%d" height="%d"/>`, left, top, plotWidth, plotHeight)
}

// height of a value in the picture.
func yOf(a axis, v float64) float64 { return top + plotHeight*(1-a.at(v)) }

// rules draws a horizontal line for each mark.
func (p *picture) rules(c *chart, y axis, marks []float64) {
	for _, m := range marks {
		at := yOf(y, m)
		p.printf(`<line class="rule" x1="%d" y1="%s" x2="%d" y2="%s"/>`, left, pixel(at), left+plotWidth, pixel(at))
		p.text("small", left-8, at+4, "end", c.yText(m))
	}
}

// lines draws a line for each series, its points, and the range of each.
func (p *picture) lines(c *chart, xs []float64, y axis) {
	x := axis{xs[0], xs[len(xs)-1]}
	at := func(v float64) float64 { return left + margin + (plotWidth-2*margin)*x.at(v) }
	free := 0.0 // the right end of the last label
	for _, v := range xs {
		label := c.xText(v)
		half := charWidth * float64(len([]rune(label))) / 2
		p.printf(`<line class="rule" x1="%s" y1="%d" x2="%s" y2="%d"/>`, pixel(at(v)), top, pixel(at(v)), top+plotHeight)
		if at(v)-half > free {
			p.text("small", at(v), top+plotHeight+textHeight+4, "middle", label)
			free = at(v) + half + charWidth
		}
	}
	for i, s := range c.series {
		var path strings.Builder
		for n, q := range s.points {
			command := "L"
			if n == 0 {
				command = "M"
			}
			fmt.Fprintf(&path, "%s%s %s", command, pixel(at(q.x)), pixel(yOf(y, q.y)))
			p.printf(`<line class="span s%d" x1="%s" y1="%s" x2="%s" y2="%s"/>`, i, pixel(at(q.x)), pixel(yOf(y, q.low)), pixel(at(q.x)), pixel(yOf(y, q.high)))
		}
		p.printf(`<path class="line s%d" d="%s"/>`, i, path.String())
		for _, q := range s.points {
			p.mark(i, at(q.x), yOf(y, q.y))
		}
	}
}

// mark draws the point of a series. Shapes differ, because colours look alike to some readers.
func (p *picture) mark(i int, x, y float64) {
	switch i % 3 {
	case 0:
		p.printf(`<circle class="f%d" cx="%s" cy="%s" r="4"/>`, i, pixel(x), pixel(y))
	case 1:
		p.printf(`<rect class="f%d" x="%s" y="%s" width="7" height="7"/>`, i, pixel(x-3.5), pixel(y-3.5))
	default:
		p.printf(`<path class="f%d" d="M%s %sl5 8h-10z"/>`, i, pixel(x), pixel(y-5))
	}
}

// inGroups draws the points of each group side by side, and the range of each.
func (p *picture) inGroups(c *chart, y axis) {
	each := float64(plotWidth) / float64(len(c.groups))
	for g, name := range c.groups {
		x := left + each*(float64(g)+0.5)
		p.printf(`<line class="rule" x1="%s" y1="%d" x2="%s" y2="%d"/>`, pixel(x), top, pixel(x), top+plotHeight)
		p.text("small", x, top+plotHeight+textHeight+4, "middle", name)
	}
	for i, s := range c.series {
		for _, q := range s.points {
			x := left + each*(q.x+float64(i+1)/float64(len(c.series)+1))
			p.printf(`<line class="span s%d" x1="%s" y1="%s" x2="%s" y2="%s"/>`, i, pixel(x), pixel(yOf(y, q.low)), pixel(x), pixel(yOf(y, q.high)))
			p.mark(i, x, yOf(y, q.y))
		}
	}
}

// legend names the series, side by side below the title.
func (p *picture) legend(c *chart) {
	x := float64(left)
	for i, s := range c.series {
		p.mark(i, x+5, 48)
		p.text("small", x+16, 52, "start", s.name)
		x += 16 + charWidth*float64(len([]rune(s.name))) + 20
	}
}

// sizeText returns a number of bytes with the largest binary unit that leaves a whole number.
func sizeText(v float64) string {
	n, units := int64(v), []string{" B", " KiB", " MiB", " GiB", " TiB"}
	for len(units) > 1 && n >= 1<<10 && n%(1<<10) == 0 {
		n, units = n>>10, units[1:]
	}
	return strconv.FormatInt(n, 10) + units[0]
}

// numberText returns a number with at most four decimals and with commas between thousands.
func numberText(v float64) string {
	const fewest, most = 1e-4, 1e7 // longer texts do not fit beside the picture
	if v < fewest || v >= most {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	whole, part, _ := strings.Cut(strconv.FormatFloat(v, 'f', -1, 64), ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	const digits = 4
	if part = strings.TrimRight(part[:min(len(part), digits)], "0"); part != "" {
		whole += "." + part
	}
	return whole
}
