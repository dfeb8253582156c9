package machineapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Why a call failed. An *Error wraps one of them.
var (
	// ErrUnreachable: nothing answered in time, or what answers is not ready to.
	ErrUnreachable = errors.New("unreachable")
	// ErrUnauthorized: the two sides do not trust each other. The machine belongs to another cluster; or it is in
	// maintenance mode and the call was secured, or the other way round.
	ErrUnauthorized = errors.New("not authorised")
	// ErrRefused: the machine understood the call and declined it.
	ErrRefused = errors.New("refused")
)

// Error of a call to a machine.
type Error struct {
	// Address of the machine, "host:port".
	Address string
	// Doing is what was asked for.
	Doing string
	// Reason is ErrUnreachable, ErrUnauthorized or ErrRefused.
	Reason error
	// Message is the cause in plain words.
	Message string
	// Err is the cause itself.
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: machine %s: %s", e.Doing, e.Address, e.Message)
}

// Unwrap answers the reason and the cause.
func (e *Error) Unwrap() []error { return []error{e.Reason, e.Err} }

// classify turns the error of a call into an *Error. The error of a context that was given up stays what it is.
func (c *Client) classify(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Cause(ctx)
	}
	e := &Error{Address: c.address, Doing: doing, Err: err}
	e.Message, e.Reason = c.explain(err)
	return e
}

func (c *Client) explain(err error) (message string, reason error) {
	code := client.StatusCode(err)
	if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	below := c.last.get()
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded:
		return c.explainBelow(below, code, err)
	case codes.Unauthenticated, codes.PermissionDenied:
		return "it does not grant this: " + text(err), ErrUnauthorized
	default:
		return text(err), ErrRefused
	}
}

// explainBelow explains a call that did not get through, by what happened to its connection.
func (c *Client) explainBelow(below error, code codes.Code, err error) (message string, reason error) {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
	)
	switch {
	case errors.As(below, &unknown):
		return "its certificate is not from this cluster: it is in maintenance mode, or belongs to another cluster", ErrUnauthorized
	case errors.As(below, &hostname):
		return fmt.Sprintf("its certificate is not valid for this address (%v): add the address to machine.certSANs in a config patch", hostname), ErrUnauthorized
	case errors.As(below, &invalid):
		return fmt.Sprintf("its certificate is not valid (%v): check the clocks of the machine and of this server", invalid), ErrUnauthorized
	case below != nil && isAlert(below) && c.secured:
		return fmt.Sprintf("it does not accept this cluster's client certificate (%v): it belongs to another cluster", below), ErrUnauthorized
	case below != nil && isAlert(below):
		return fmt.Sprintf("it is not in maintenance mode: it demands a client certificate of the cluster that configured it (%v)", below), ErrUnauthorized
	case below != nil:
		return "it cannot be reached: " + below.Error(), ErrUnreachable
	case code == codes.DeadlineExceeded:
		return "it did not answer in time", ErrUnreachable
	default:
		return "it cannot be reached: " + text(err), ErrUnreachable
	}
}

// text is the message of a gRPC error without its wrapping.
func text(err error) string {
	if st := client.Status(err); st != nil {
		return st.Message()
	}
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}
