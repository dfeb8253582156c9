package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
)

func (a *app) streamTopCommand() *cobra.Command {
	var nodes nodeFlag
	var every time.Duration
	var by string
	cmd := &cobra.Command{
		Use: "top [STREAM]", Short: "Show what streams are doing: throughput, errors, lag, CPU and memory", Args: atMost(1),
		Long: "Show what streams are doing. On a terminal the table is kept up to date until interrupted; elsewhere it is printed once.\n" +
			"Rates are between a stream's last two reports; those come every 15 seconds, and when something changes.",
		Example:           "  freehold stream top\n  freehold stream top --node local --sort cpu",
		ValidArgsFunction: a.completeStreams(&nodes),
		RunE: func(cmd *cobra.Command, args []string) error {
			if topOrder[by] == nil {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--sort %s: choose one of name, in, out, errors, lag, cpu, memory", by)}
			}
			if every < 100*time.Millisecond {
				return &usageError{cmd.CommandPath(), errors.New("--interval: a tenth of a second at least")}
			}
			v := &topView{node: nodes.node, order: topOrder[by], cpu: map[string]cpuSample{}}
			if len(args) == 1 {
				r, err := nodes.ref(args[0])
				if err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
				v.node, v.stream = r.node, r.stream
			}
			h, err := a.hubAPI()
			if err != nil {
				return err
			}
			return a.top(cmd.Context(), h, v, every)
		},
	}
	nodes.add(a, cmd, "the streams of this node only")
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "how often the table is made anew")
	cmd.Flags().StringVar(&by, "sort", "name", "what comes first: name, in, out, errors, lag, cpu or memory")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"name", "in", "out", "errors", "lag", "cpu", "memory"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// topView is what top shows of streams.
type topView struct {
	node, stream string
	order        func(a, b *topRow) int
	rows         []topRow
	// cpu are the readings before, to tell how much was used since.
	cpu map[string]cpuSample
}

type cpuSample struct {
	at      time.Time
	seconds float64
	percent float64 // between the last two readings, -1 if not known
}

// topRow is one stream with its metrics; they are nil while there are none.
type topRow struct {
	stream  client.Stream
	metrics *client.StreamMetrics
	cpu     float64
}

func (r *topRow) name() string { return hub.StreamName(r.stream.NodeID, r.stream.StreamID) }

// value is a number of the metrics, below all others when there are none.
func (r *topRow) value(of func(*client.StreamMetrics) float64) float64 {
	if r.metrics == nil {
		return -1
	}
	return of(r.metrics)
}

func descending(of func(*topRow) float64) func(a, b *topRow) int {
	return func(a, b *topRow) int {
		return cmp.Or(cmp.Compare(of(b), of(a)), strings.Compare(a.name(), b.name()))
	}
}

var topOrder = map[string]func(a, b *topRow) int{
	"name": func(a, b *topRow) int { return strings.Compare(a.name(), b.name()) },
	"in": descending(func(r *topRow) float64 {
		return r.value(func(m *client.StreamMetrics) float64 { return m.InputPerSecond })
	}),
	"out": descending(func(r *topRow) float64 {
		return r.value(func(m *client.StreamMetrics) float64 { return m.OutputPerSecond })
	}),
	"errors": descending(func(r *topRow) float64 {
		return r.value(func(m *client.StreamMetrics) float64 { return m.ErrorsPerSecond })
	}),
	"lag": descending(func(r *topRow) float64 {
		return r.value(func(m *client.StreamMetrics) float64 { return float64(m.LagMessages) })
	}),
	"cpu": descending(func(r *topRow) float64 { return r.cpu }),
	"memory": descending(func(r *topRow) float64 {
		return r.value(func(m *client.StreamMetrics) float64 { return float64(m.MemoryBytes) })
	}),
}

func (a *app) top(ctx context.Context, h client.Hub, v *topView, every time.Duration) error {
	out := newLive(a.out, a.Getenv)
	trouble := a.reconnecting()
	for started := false; ; started = true {
		err := v.read(ctx, h)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (!started || !mayRecover(err)):
			return err
		case err != nil:
			trouble(err)
		case !out.isTerminal():
			_, err := io.WriteString(a.out, strings.Join(v.lines(out, a.Now(), 0), "\n")+"\n")
			return err
		default:
			out.draw(v.lines(out, a.Now(), heightOf(a.out)))
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// heightOf is how many lines a terminal has, 0 if that is not known.
func heightOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if _, height, err := term.GetSize(int(f.Fd())); err == nil {
			return height
		}
	}
	return 0
}

// read takes in the streams and their metrics.
func (v *topView) read(ctx context.Context, h client.Hub) error {
	streams, err := streamsOf(ctx, h, v.node)
	if err != nil {
		return err
	}
	rows := make([]topRow, 0, len(streams))
	for _, s := range streams {
		if (v.stream == "" || s.StreamID == v.stream) && (s.Desired == nil || s.Desired.State != hub.Absent) {
			rows = append(rows, topRow{stream: s, cpu: -1})
		}
	}
	if v.stream != "" && len(rows) == 0 {
		return fmt.Errorf("there is no stream %s", hub.StreamName(v.node, v.stream))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range rows {
		g.Go(func() error {
			m, err := h.Metrics(ctx, rows[i].stream.NodeID, rows[i].stream.StreamID)
			switch {
			case client.IsNotFound(err) || client.IsNodeUnavailable(err) || err == nil && m.ReportedAt == nil:
				return nil // nothing is known
			case err != nil:
				return err
			}
			rows[i].metrics = m
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	v.measure(rows)
	slices.SortFunc(rows, func(a, b topRow) int { return v.order(&a, &b) })
	v.rows = rows
	return nil
}

// measure tells the use of CPU between a stream's last two reports.
func (v *topView) measure(rows []topRow) {
	now := map[string]cpuSample{}
	for i := range rows {
		m := rows[i].metrics
		if m == nil {
			continue
		}
		last, ok := v.cpu[rows[i].name()]
		next := cpuSample{*m.ReportedAt, m.CPUSeconds, -1}
		switch took := next.at.Sub(last.at).Seconds(); {
		case ok && took <= 0:
			next = last
		case ok && next.seconds >= last.seconds:
			next.percent = 100 * (next.seconds - last.seconds) / took
		}
		now[rows[i].name()], rows[i].cpu = next, next.percent
	}
	v.cpu = now
}

// lines draws the table, in at most so many lines; 0: in as many as it takes.
func (v *topView) lines(l *live, now time.Time, height int) []string {
	var b strings.Builder
	t := &table{w: &b}
	t.add("NODE", "STREAM", "STATE", "IN/S", "OUT/S", "ERR/S", "IN", "OUT", "ERRORS", "LAG", "CPU", "MEMORY", "RESTARTS", "UP", "SEEN")
	states := map[hub.ConvergenceState]int{}
	for i := range v.rows {
		r := &v.rows[i]
		states[r.stream.Convergence]++
		t.add(r.cells(now)...)
	}
	_ = t.flush()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if height > 4 && len(lines) > height-3 {
		more := len(lines) - (height - 4)
		lines = append(lines[:height-4], fmt.Sprintf("… and %d more", more))
	}
	lines[0] = l.paint(bold, lines[0])
	return append([]string{countOf(len(v.rows), "stream") + statesText(states)}, lines...)
}

// statesText counts by convergence, in the order that an operator cares about.
func statesText(states map[hub.ConvergenceState]int) string {
	text := ""
	for _, s := range []hub.ConvergenceState{hub.InSync, hub.Applying, hub.Pending, hub.Degraded, hub.ConvergenceBlocked, hub.Unknown} {
		if n := states[s]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, s)
		}
	}
	return text
}

func (r *topRow) cells(now time.Time) []string {
	head := []string{r.stream.NodeID, r.stream.StreamID, string(r.stream.Convergence)}
	m := r.metrics
	if m == nil {
		return append(head, make([]string, 12)...)
	}
	lag, cpu := "", ""
	if m.LagMessages >= 0 {
		lag = short(m.LagMessages)
	}
	if r.cpu >= 0 {
		cpu = fmt.Sprintf("%.0f%%", r.cpu)
	}
	return append(head, rate(m.InputPerSecond), rate(m.OutputPerSecond), rate(m.ErrorsPerSecond), short(m.InputMessages), short(m.OutputMessages),
		short(m.Errors), lag, cpu, bytesText(m.MemoryBytes), fmt.Sprint(m.Restarts), age(inSeconds(m.UptimeSeconds)), since(*m.ReportedAt, now)+" ago")
}

// rate is a number a second with as many digits as say something.
func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0"
	case perSecond < 10:
		return fmt.Sprintf("%.1f", perSecond)
	}
	return short(int64(perSecond))
}

// short is a count in four or five columns: 950, 12.3k, 4.5M.
func short(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprint(n)
	case n < 1_000_000:
		return fmt.Sprintf("%.1fk", float64(n)/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1fG", float64(n)/1e9)
}

func bytesText(n int64) string {
	switch {
	case n <= 0:
		return ""
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
