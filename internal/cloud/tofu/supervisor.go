package tofu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// lockFD is the descriptor of the folder's lock in the supervisor and in tofu.
const lockFD = 3

// flushPatience is how long a run that is over waits for the plane to take its last state.
const flushPatience = 5 * time.Second

// RunMain is the supervisor: the hidden subcommand "tofu-run <folder> <run>". It expects the folder's lock as
// descriptor 3 and a [Request] on its standard input, and answers the exit code. It is to be started by
// [Folder.Start] only.
func RunMain(ctx context.Context, args []string, providers Providers) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "tofu-run is started by the server only")
		return 2
	}
	syscall.Umask(0o077)
	// The plane may be gone: writing to its pipes or losing its session must not end the run.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	asked := make(chan os.Signal, 4)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(asked)

	s := &supervisor{
		folder: Folder(args[0]), run: args[1], providers: providers, now: time.Now,
		lock: os.NewFile(lockFD, "run.lock"),
	}
	if s.lock == nil {
		fmt.Fprintln(os.Stderr, "tofu-run was started without the folder's lock")
		return 2
	}
	syscall.CloseOnExec(lockFD)
	raw, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(raw, &s.req)
	}
	if err != nil || s.req.Run != s.run {
		// The plane died before it had handed over the request. Nothing was done.
		fmt.Fprintln(os.Stderr, "tofu-run got no request")
		return 2
	}
	if err := s.main(ctx, asked); err != nil {
		fmt.Fprintln(os.Stderr, s.redact.text(err.Error()))
		return 1
	}
	return 0
}

type supervisor struct {
	folder    Folder
	run       string
	providers Providers
	now       func() time.Time
	lock      *os.File
	req       Request
	redact    redactor
	log       *os.File
	proxy     *proxy
	served    *served
	started   time.Time

	mu       sync.Mutex
	progress Progress
	written  time.Time
	// stopped tells why tofu was asked to stop; "" while it was not.
	stopped Result
	tofuPID int
}

// main runs the stages and writes the outcome. An error means that there is no outcome.
func (s *supervisor) main(ctx context.Context, asked <-chan os.Signal) error {
	s.started = s.now()
	s.redact.known = []string{s.req.Passphrase, s.req.Credential}
	if err := s.open(); err != nil {
		return err
	}
	defer s.log.Close() //nolint:errcheck // a log line more or less
	s.enter(PhasePreparing, "")

	// The caller's context ends with the signals that are handled here.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var err error
	if s.proxy, err = newProxy(ctx, s.folder, &s.req); err != nil {
		return err
	}
	defer s.proxy.close()
	s.redact.known = append(s.redact.known, s.proxy.password)
	if s.served, err = serve(ctx, s.providers); err != nil {
		return err
	}
	defer s.served.stop()

	var background sync.WaitGroup
	background.Go(func() { s.proxy.forward(ctx) })
	background.Go(func() { s.watchdog(ctx, asked) })

	outcome := s.stages(ctx)
	s.enter(PhaseSaving, "")
	cancel()
	background.Wait()
	s.proxy.flush(context.Background(), flushPatience)

	s.enter(PhaseDone, "")
	s.mu.Lock()
	s.progress.end()
	outcome.Progress = s.progress
	s.mu.Unlock()
	outcome.Run, outcome.Started, outcome.Finished = s.run, s.started, s.now()
	return writeJSON(s.folder.outcome(s.run), outcome)
}

func (s *supervisor) open() error {
	if err := os.MkdirAll(s.folder.spool(s.run), 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(s.folder.work(), 0o700); err != nil {
		return err
	}
	// So that the plane, on its return, can tell the supervisor from tofu.
	if err := replaceFile(filepath.Join(s.folder.run(s.run), "supervisor.json"), []byte(strconv.Itoa(os.Getpid()))); err != nil {
		return err
	}
	log, err := os.OpenFile(s.folder.Log(s.run), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	s.log = log
	return err
}

// stages carries out the run.
func (s *supervisor) stages(ctx context.Context) Outcome {
	for _, stage := range s.req.Stages {
		blocked, err := s.stage(ctx, stage)
		if err == nil && len(blocked) == 0 {
			continue
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		o := Outcome{Result: Failed, Blocked: blocked}
		var f *Failure
		var told failedError
		switch {
		case len(blocked) > 0:
			o.Result = Blocked
			f = &Failure{Phase: s.progress.Phase, Summary: "The plan would destroy or replace what nobody asked to remove"}
		case errors.As(err, &told):
			f = told.Failure
		default:
			f = &Failure{Phase: s.progress.Phase, Summary: s.redact.text(err.Error())}
		}
		if s.stopped != "" {
			o.Result = s.stopped
		}
		o.Error = f
		return o
	}
	return Outcome{Result: Succeeded}
}

// failedError is a Failure as an error.
type failedError struct{ *Failure }

func (f failedError) Error() string { return f.String() }

// stage plans, checks and applies one configuration. blocked names what the guard refused.
func (s *supervisor) stage(ctx context.Context, stage Stage) (blocked []string, err error) {
	s.enter(PhasePreparing, stage.Name)
	config := filepath.Join(s.folder.work(), "main.tf.json")
	if err := replaceFile(config, stage.Config); err != nil {
		return nil, err
	}
	if err := s.initialise(ctx, stage.Config); err != nil {
		return nil, err
	}

	s.enter(PhasePlanning, stage.Name)
	if len(s.req.State) == 0 {
		return nil, s.make(ctx, stage)
	}
	plan := filepath.Join(s.folder.work(), "plan")
	defer os.Remove(plan) //nolint:errcheck // the next one replaces it
	args := []string{"plan", jsonLines, "-input=false", "-detailed-exitcode", "-lock-timeout=10s", s.parallelism(), "-out=" + plan}
	var announced planned
	code, err := s.tofu(ctx, func(l line) { s.followed(l); announced.follow(l) }, append(args, stage.flags()...)...)
	if err != nil {
		return nil, err
	}
	if code != exitChanges {
		return nil, nil
	}

	s.enter(PhaseChecking, stage.Name)
	if !announced.harmless() {
		shown, err := s.capture(ctx, "show", "-json", plan)
		if err != nil {
			return nil, err
		}
		if blocked, err := s.req.Guard.Check(shown); err != nil || len(blocked) > 0 {
			return blocked, err
		}
	}

	s.enter(PhaseApplying, stage.Name)
	_, err = s.tofu(ctx, s.followed, "apply", jsonLines, "-input=false", "-lock-timeout=10s", s.parallelism(), plan)
	return nil, err
}

// make plans and applies in one command. It is for a run that began without a state: there is nothing that its plan
// could take away, and a saved plan would cost another tofu and its key derivation.
func (s *supervisor) make(ctx context.Context, stage Stage) error {
	args := []string{"apply", jsonLines, "-input=false", "-auto-approve", "-lock-timeout=10s", s.parallelism()}
	_, err := s.tofu(ctx, func(l line) {
		s.followed(l)
		if l.Type == "change_summary" && l.Changes != nil && l.Changes.Operation == "plan" {
			s.enter(PhaseApplying, stage.Name)
		}
	}, append(args, stage.flags()...)...)
	return err
}

// flags of a plan of the stage.
func (s Stage) flags() []string {
	var flags []string
	if s.Destroy {
		flags = append(flags, "-destroy")
	}
	for _, address := range s.Exclude {
		flags = append(flags, "-exclude="+address)
	}
	return flags
}

func (s *supervisor) parallelism() string {
	n := s.req.Parallelism
	if n <= 0 {
		n = 32
	}
	return fmt.Sprintf("-parallelism=%d", n)
}

func (s *supervisor) enter(phase Phase, stage string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Phase, s.progress.Updated = phase, s.now()
	if stage != "" {
		s.progress.Stage = stage
	}
	s.publish(true)
}

func (s *supervisor) followed(l line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.progress.follow(l, s.now()) {
		s.publish(l.Type != "planned_change")
	}
}

// publish writes the progress for the plane to read. It is not worth an fsync: the outcome carries it again.
func (s *supervisor) publish(now bool) {
	if !now && s.now().Sub(s.written) < 100*time.Millisecond {
		return
	}
	s.written = s.now()
	raw, err := json.Marshal(s.progress)
	if err != nil {
		return
	}
	_ = replaceFile(s.folder.progress(s.run), raw)
}

// watchdog asks tofu to stop, at the deadline or when the supervisor itself is asked to.
func (s *supervisor) watchdog(ctx context.Context, asked <-chan os.Signal) {
	deadline := time.NewTimer(time.Until(s.req.Deadline))
	defer deadline.Stop()
	why := TimedOut
	select {
	case <-ctx.Done():
		return
	case <-asked:
		why = Interrupted
	case <-deadline.C:
	}
	s.stop(why)
	// First tofu may finish what it is at; then its providers are taken away, which makes a hanging call fail and
	// lets tofu save its state; only a tofu that does not even do that is killed.
	for _, force := range []func(){s.served.stop, s.kill} {
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.req.Grace / 2):
			force()
		}
	}
}

func (s *supervisor) stop(why Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = why
	if s.tofuPID > 0 {
		_ = syscall.Kill(s.tofuPID, syscall.SIGINT)
	}
}

func (s *supervisor) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tofuPID > 0 {
		_ = syscall.Kill(-s.tofuPID, syscall.SIGKILL)
	}
}
