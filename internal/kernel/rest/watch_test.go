package rest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// feed is a watch's source that the test fills.
type feed struct {
	frames chan Frames
	closed chan struct{}
	once   sync.Once
}

func newFeed() *feed { return &feed{frames: make(chan Frames), closed: make(chan struct{})} }

var errEnded = errors.New("the source ended")

func (f *feed) next(ctx context.Context) (Frames, error) {
	select {
	case fr, ok := <-f.frames:
		if !ok {
			return Frames{}, errEnded
		}
		return fr, nil
	case <-ctx.Done():
		return Frames{}, ctx.Err()
	}
}

func (f *feed) close() { f.once.Do(func() { close(f.closed) }) }

// server runs Serve until stop, which answers its error.
func server(t *testing.T, h http.Handler, s Serving) (addr string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, h, s) }()
	var once sync.Once
	var stopErr error
	stop = func() error {
		once.Do(func() {
			cancel()
			stopErr = <-served
		})
		return stopErr
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), stop
}

func watchAPI(t *testing.T, w Watch) (*http.ServeMux, *API) {
	mux := http.NewServeMux()
	api := New(mux, Config{Logger: slog.New(slog.DiscardHandler), Prefixes: []string{"/"}})
	Register(api, Operation{Method: "GET", Path: "/events", ID: "watch", Access: Public, Produces: "application/json"},
		func(_ context.Context, in *WatchInput) (*Stream, error) {
			if _, err := in.Since(); err != nil {
				return nil, err
			}
			w := w
			w.SSE = in.SSE
			return WatchStream(w), nil
		})
	return mux, api
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("%s did not happen", what)
	}
}

func readLines(t *testing.T, r *bufio.Reader, n int) []string {
	t.Helper()
	var lines []string
	for len(lines) < n {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", lines, err)
		}
		lines = append(lines, strings.TrimRight(line, "\n"))
	}
	return lines
}

func TestWatchesInBothFormats(t *testing.T) {
	for _, c := range []struct {
		query string
		kind  string
		want  string
	}{
		{"", "application/json", "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n"},
		{"?sse=true", "text/event-stream", "data: {\"a\":1}\n\nid: 7\ndata: {\"b\":2}\n\nid: 8\ndata: {\"c\":3}\n\n"},
	} {
		f := newFeed()
		mux, _ := watchAPI(t, Watch{Next: f.next, Close: f.close})
		addr, _ := server(t, mux, Serving{})
		r, err := http.Get("http://" + addr + "/events" + c.query)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Header.Get("Content-Type"); got != c.kind {
			t.Errorf("type %q", got)
		}
		f.frames <- Frames{Revision: 7, Events: [][]byte{[]byte(`{"a":1}`), []byte(`{"b":2}`)}}
		f.frames <- Frames{Revision: 8, Events: [][]byte{[]byte(`{"c":3}`)}}
		close(f.frames)
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(b) != c.want {
			t.Errorf("%q, %v", b, err)
		}
		await(t, "closing the source", f.closed)
	}
}

func TestWatchesBeat(t *testing.T) {
	for query, want := range map[string]string{"": "", "?sse=true": ":"} {
		f := newFeed()
		mux, _ := watchAPI(t, Watch{Next: f.next, Close: f.close, Heartbeat: time.Millisecond})
		addr, _ := server(t, mux, Serving{})
		r, err := http.Get("http://" + addr + "/events" + query)
		if err != nil {
			t.Fatal(err)
		}
		if got := readLines(t, bufio.NewReader(r.Body), 3); got[0] != want || got[2] != want {
			t.Errorf("%q", got)
		}
		r.Body.Close()
		await(t, "closing the source after its client left", f.closed)
	}
}

func TestAWatchEndsWithItsCredential(t *testing.T) {
	f := newFeed()
	mux := http.NewServeMux()
	var revoked, demoted atomic.Bool
	api := New(mux, Config{
		Logger: slog.New(slog.DiscardHandler), Prefixes: []string{"/"},
		Authenticate: func(r *http.Request) (context.Context, error) {
			if revoked.Load() {
				return nil, Unauthorized("the credential was revoked")
			}
			return r.Context(), nil
		},
		Authorize: func(context.Context, Access) error {
			if demoted.Load() {
				return Forbidden("not any more")
			}
			return nil
		},
	})
	Register(api, Operation{Method: "GET", Path: "/events", ID: "watch", Access: View},
		func(context.Context, *struct{}) (*Stream, error) {
			return WatchStream(Watch{Next: f.next, Heartbeat: time.Millisecond}), nil
		})
	addr, _ := server(t, mux, Serving{})
	for name, end := range map[string]*atomic.Bool{"revoked": &revoked, "demoted": &demoted} {
		resp, err := http.Get("http://" + addr + "/events")
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(resp.Body)
		f.frames <- Frames{Events: [][]byte{[]byte(`{"a":1}`)}}
		for line := ""; line != `{"a":1}`; line = readLines(t, r, 1)[0] {
		}
		end.Store(true)
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		resp.Body.Close()
		end.Store(false)
	}
}

func TestAReaderThatStopsIsCutOff(t *testing.T) {
	closed := make(chan struct{})
	event := []byte(`"` + strings.Repeat("x", 64<<10) + `"`)
	mux, _ := watchAPI(t, Watch{
		Next:  func(context.Context) (Frames, error) { return Frames{Revision: 1, Events: [][]byte{event}}, nil },
		Close: func() { close(closed) }, Stall: 50 * time.Millisecond,
	})
	addr, _ := server(t, mux, Serving{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
	await(t, "cutting off", closed)
}

func TestStoppingEndsStreamsAndFinishesRequests(t *testing.T) {
	f := newFeed()
	mux, api := watchAPI(t, Watch{Next: f.next, Close: f.close})
	arrived, release := make(chan struct{}), make(chan struct{})
	api.Handle(Operation{Method: "GET", Path: "/slow", ID: "slow", Access: Public}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-release
		if r.Context().Err() != nil {
			t.Error("the request was cancelled")
		}
		io.WriteString(w, "done")
	}))
	addr, stop := server(t, mux, Serving{})
	watch, err := http.Get("http://" + addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	slow := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + addr + "/slow")
		if err != nil {
			slow <- err.Error()
			return
		}
		b, _ := io.ReadAll(r.Body)
		slow <- string(b)
	}()
	await(t, "the slow request's arrival", arrived)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if b, err := io.ReadAll(watch.Body); err != nil || len(b) != 0 {
		t.Errorf("the watch ended with %q, %v", b, err)
	}
	await(t, "closing the source", f.closed)
	close(release)
	if got := <-slow; got != "done" {
		t.Errorf("the slow request got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the listener is open")
	}
}

func TestHTTP2(t *testing.T) {
	f := newFeed()
	mux, _ := watchAPI(t, Watch{Next: f.next, Close: f.close})
	_, widgets := newFixture(t, nil, nil)
	mux.Handle("/api/", widgets)
	lent := httptest.NewTLSServer(nil) // for its certificate and a client that trusts it
	defer lent.Close()
	client := lent.Client()
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	addr, stop := server(t, mux, Serving{TLS: &tls.Config{Certificates: lent.TLS.Certificates}})
	watch, err := client.Get("https://" + addr + "/events?sse=true")
	if err != nil {
		t.Fatal(err)
	}
	if watch.ProtoMajor != 2 {
		t.Fatalf("spoke %s", watch.Proto)
	}
	f.frames <- Frames{Revision: 1, Events: [][]byte{[]byte(`{}`)}}
	if got := readLines(t, bufio.NewReader(watch.Body), 2); got[0] != "id: 1" {
		t.Errorf("%q", got)
	}
	for size, status := range map[int]int{10: 201, 10 << 20: 413} {
		req, err := http.NewRequest("POST", "https://"+addr+"/api/v1/widgets", strings.NewReader(`{"name":"`+strings.Repeat("x", size)+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer edit")
		r, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if r.Body.Close(); r.StatusCode != status {
			t.Errorf("%d bytes: %d", size, r.StatusCode)
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if _, err := io.ReadAll(watch.Body); err != nil {
		t.Errorf("the watch ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestRequestsThatOutlastTheGraceAreCutOff(t *testing.T) {
	mux := http.NewServeMux()
	arrived := make(chan struct{})
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	addr, stop := server(t, mux, Serving{Grace: time.Millisecond})
	go http.Get("http://" + addr + "/")
	await(t, "the request's arrival", arrived)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestWatchesCannotBeHeldByHEAD(t *testing.T) {
	f := newFeed()
	mux, _ := watchAPI(t, Watch{Next: f.next, Close: f.close})
	addr, _ := server(t, mux, Serving{})
	r, err := http.Head("http://" + addr + "/events")
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	await(t, "closing the source", f.closed)
}

func TestWhereAWatchResumes(t *testing.T) {
	for _, c := range []struct {
		in   WatchInput
		want int64
		bad  string
	}{
		{WatchInput{}, 0, ""},
		{WatchInput{ResourceVersion: "7"}, 7, ""},
		{WatchInput{SSE: true, LastEventID: "8"}, 8, ""},
		{WatchInput{SSE: true, LastEventID: "8", ResourceVersion: "7"}, 7, ""},
		{WatchInput{LastEventID: "8"}, 0, ""},
		{WatchInput{ResourceVersion: "-1"}, 0, "resourceVersion"},
		{WatchInput{ResourceVersion: "x"}, 0, "resourceVersion"},
		{WatchInput{SSE: true, LastEventID: "x"}, 0, "Last-Event-ID"},
	} {
		got, err := c.in.Since()
		var p *Problem
		bad := ""
		if errors.As(err, &p) {
			bad = p.Causes[0].Field
		}
		if got != c.want || bad != c.bad {
			t.Errorf("%+v: %d, %v", c.in, got, err)
		}
	}
}

// TestHugeBodiesAreNotRead: the answer comes while most of the body was not sent.
func TestHugeBodiesAreNotRead(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	addr, _ := server(t, mux, Serving{})
	for _, header := range []string{"Content-Length: 10485760", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		fmt.Fprintf(c, "POST /api/v1/widgets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer edit\r\n%s\r\n\r\n", header)
		if strings.HasPrefix(header, "Transfer") {
			fmt.Fprintf(c, "%x\r\n%s\r\n", DefaultMaxBody+2, strings.Repeat("x", DefaultMaxBody+2))
		}
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", header, err)
		}
		if f := failure(t, r); f.Code != 413 || !r.Close {
			t.Errorf("%s: %+v, close %v", header, f, r.Close)
		}
		c.Close()
	}
}

func TestBodiesThatEndEarlyChangeNothing(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	addr, _ := server(t, mux, Serving{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	fmt.Fprintf(c, "POST /api/v1/widgets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer edit\r\nContent-Length: 100\r\n\r\n{\"name\":\"a\"}")
	_ = c.(*net.TCPConn).CloseWrite()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && r.StatusCode != 400 {
		t.Errorf("%d", r.StatusCode)
	}
}

func TestHeadersAreLimited(t *testing.T) {
	_, mux := newFixture(t, nil, nil)
	addr, _ := server(t, mux, Serving{})
	req, err := http.NewRequest("GET", "http://"+addr+"/api/v1/public", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Big", strings.Repeat("x", 100<<10))
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.StatusCode != 431 {
		t.Errorf("%d", r.StatusCode)
	}
}

func TestAWatchOutlivesTheWriteTimeoutOfOrdinaryAnswers(t *testing.T) {
	// The handler's own deadline replaces the server's: were it not so, this one would be long past.
	f := newFeed()
	mux, _ := watchAPI(t, Watch{Next: f.next, Close: f.close})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const ordinary = time.Second
	s := &http.Server{Handler: mux, WriteTimeout: ordinary}
	go s.Serve(l)
	defer s.Close()
	r, err := http.Get("http://" + l.Addr().String() + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	in := bufio.NewReader(r.Body)
	<-time.After(ordinary) // of the server's deadline, which has passed then
	for i := range 20 {
		f.frames <- Frames{Events: [][]byte{fmt.Appendf(nil, "%d", i)}}
		if got := readLines(t, in, 1)[0]; got != fmt.Sprint(i) {
			t.Errorf("%q", got)
		}
	}
}
