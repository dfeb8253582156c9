package agentapi

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/golang-jwt/jwt/v5"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/rest"
)

// Audiences keep one kind of credential from being used as another.
const (
	audienceSession = "freehold-agent"
	audienceRefresh = "freehold-agent-refresh"
	issuer          = "freehold-hub"
	// maxToken is the longest credential, in bytes, that is looked at.
	maxToken = 4096
	// refreshTTL is longer than any node's life: the node's record ends a refresh credential.
	refreshTTL = 100 * 365 * 24 * time.Hour
	// challengeTTL is how long a challenge may be answered.
	challengeTTL = 2 * time.Minute
)

// claims of a session, or of a refresh credential (which names no boot). Subject is the node.
type claims struct {
	jwt.RegisteredClaims
	NodeUID    string `json:"uid"`
	Credential string `json:"crd"`
	BootID     string `json:"bid,omitempty"`
	BootSeq    int64  `json:"bsq,omitempty"`
}

func (c *claims) boot() hub.Boot { return hub.Boot{ID: c.BootID, Seq: c.BootSeq} }

// tokens makes and checks what agents show. None of it is stored.
type tokens struct {
	key              []byte
	now              func() time.Time
	session, refresh *jwt.Parser
}

func newTokens(key []byte, now func() time.Time) *tokens {
	parser := func(audience string) *jwt.Parser {
		return jwt.NewParser(
			jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
			jwt.WithExpirationRequired(), jwt.WithStrictDecoding(), jwt.WithTimeFunc(now))
	}
	return &tokens{key: key, now: now, session: parser(audienceSession), refresh: parser(audienceRefresh)}
}

func (t *tokens) sign(c claims, audience string, ttl time.Duration) (string, time.Time, error) {
	now := t.now().UTC().Truncate(time.Second)
	c.Issuer, c.Audience = issuer, jwt.ClaimStrings{audience}
	c.IssuedAt, c.ExpiresAt = jwt.NewNumericDate(now), jwt.NewNumericDate(now.Add(ttl))
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString(t.key)
	return text, now.Add(ttl), err
}

// newSession makes a session of a boot.
func (t *tokens) newSession(node, uid, credential string, boot hub.Boot) (protocol.Session, error) {
	c := claims{NodeUID: uid, Credential: credential, BootID: boot.ID, BootSeq: boot.Seq}
	c.Subject = node
	text, expires, err := t.sign(c, audienceSession, hub.SessionTTL)
	if err != nil {
		return protocol.Session{}, err
	}
	return protocol.Session{SessionToken: text, ExpiresAt: expires, ExpiresIn: int(hub.SessionTTL / time.Second)}, nil
}

// newRefresh makes the credential that sessions are renewed with.
func (t *tokens) newRefresh(node, uid, credential string) (string, error) {
	c := claims{NodeUID: uid, Credential: credential}
	c.Subject = node
	text, _, err := t.sign(c, audienceRefresh, refreshTTL)
	return text, err
}

func (t *tokens) parse(parser *jwt.Parser, text string) (*claims, error) {
	if text == "" || len(text) > maxToken {
		return nil, jwt.ErrTokenMalformed
	}
	var c claims
	if _, err := parser.ParseWithClaims(text, &c, func(*jwt.Token) (any, error) { return t.key, nil }); err != nil {
		return nil, err
	}
	if c.Subject == "" || c.NodeUID == "" || c.Credential == "" {
		return nil, jwt.ErrTokenInvalidClaims
	}
	return &c, nil
}

// verifySession answers the claims of a session that this hub made and that is not expired.
func (t *tokens) verifySession(text string) (*claims, error) {
	c, err := t.parse(t.session, text)
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, refused(401, protocol.CodeSessionExpired, "the session is expired: renew it with POST "+Prefix+"/session", nil)
	case err != nil || c.BootID == "":
		return nil, unauthorized("this is not a session of a node: an agent gets one with POST " + Prefix + "/session; an operator's token works only below /api/v1")
	}
	return c, nil
}

// verifyRefresh answers the claims of a refresh credential that this hub made.
func (t *tokens) verifyRefresh(text string) (*claims, *rest.Problem) {
	c, err := t.parse(t.refresh, text)
	if err != nil {
		return nil, unauthorized("this is not a refresh credential of this hub: enrol the node again with a new enrolment token")
	}
	return c, nil
}

// A challenge is when it ends, 16 random bytes, and the MAC of both with what it was made for. It is nowhere stored.
const challengeSize = 8 + 16 + sha256.Size

func (t *tokens) challenge(uid, bootID string) string {
	b := make([]byte, 0, challengeSize)
	b = binary.BigEndian.AppendUint64(b, uint64(t.now().Add(challengeTTL).Unix()))
	b = b[:24]
	_, _ = rand.Read(b[8:24])
	return base64.RawURLEncoding.EncodeToString(append(b, t.challengeMAC(b, uid, bootID)...))
}

// challenged tells whether the challenge was made for this node and boot, and is not too old.
func (t *tokens) challenged(challenge, uid, bootID string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(challenge)
	if err != nil || len(b) != challengeSize || !hmac.Equal(b[24:], t.challengeMAC(b[:24], uid, bootID)) {
		return false
	}
	return t.now().Unix() < int64(binary.BigEndian.Uint64(b[:8]))
}

func (t *tokens) challengeMAC(head []byte, uid, bootID string) []byte {
	mac := hmac.New(sha256.New, t.key)
	for _, part := range [][]byte{[]byte("challenge"), head, []byte(uid), []byte(bootID)} {
		var size [4]byte
		binary.BigEndian.PutUint32(size[:], uint32(len(part)))
		mac.Write(size[:])
		mac.Write(part)
	}
	return mac.Sum(nil)
}
