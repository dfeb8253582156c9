package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const issuer = "freehold"

// claims of a token. Subject is the user, ID the random id.
type claims struct {
	jwt.RegisteredClaims
	// UserUID tells users of one name, at different times, apart.
	UserUID string         `json:"uid"`
	Kind    CredentialKind `json:"kind"`
	// Record is the stored name of the session or API token.
	Record string `json:"rec"`
}

// signer makes and checks tokens: JWTs, HS256 and nothing else.
type signer struct {
	key    []byte
	parser *jwt.Parser
}

func newSigner(key []byte, now func() time.Time) *signer {
	return &signer{key: key, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithIssuer(issuer),
		jwt.WithExpirationRequired(), jwt.WithStrictDecoding(), jwt.WithTimeFunc(now),
	)}
}

// newID makes a random token id and the hash of it that is stored.
func newID() (id, hash string) {
	id = rand.Text() + rand.Text()
	return id, hashID(id)
}

func hashID(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

func sameHash(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (s *signer) sign(c claims) (string, error) {
	c.Issuer = issuer
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return text, nil
}

// verify answers the claims of a token that this plane signed and that is not expired.
func (s *signer) verify(text string) (*claims, error) {
	var c claims
	_, err := s.parser.ParseWithClaims(text, &c, func(*jwt.Token) (any, error) { return s.key, nil })
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, fmt.Errorf("%w: the credential is expired", ErrUnauthenticated)
	case err != nil:
		return nil, fmt.Errorf("%w: the credential is not valid here", ErrUnauthenticated)
	case c.Subject == "" || c.ID == "" || c.Record == "":
		return nil, fmt.Errorf("%w: the credential is incomplete", ErrUnauthenticated)
	}
	return &c, nil
}
