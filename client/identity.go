package client

import "time"

// User is a person or robot with one role.
type User = Resource[UserSpec, UserStatus]

// APIToken is a long-lived token, with the rights of its user.
type APIToken = Resource[APITokenSpec, APITokenStatus]

// UserSpec of a user. The server never answers a password or its hash; an update without them keeps the password.
type UserSpec struct {
	Role         string `json:"role" enum:"view,edit,admin"`
	Password     string `json:"password,omitempty" doc:"At most 72 bytes. Never answered." writeOnly:"true"`
	PasswordHash string `json:"passwordHash,omitempty" doc:"A bcrypt hash, for imports, instead of a password. Never answered." writeOnly:"true"`
}

// UserStatus of a user.
type UserStatus struct {
	LastLogin *time.Time `json:"lastLogin"`
	// ActiveTokens counts the API tokens that are neither revoked nor expired.
	ActiveTokens int `json:"activeTokens"`
}

// APITokenSpec of an API token.
type APITokenSpec struct {
	// ExpiresAt, if not given at creation, is a year away.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
}

// APITokenStatus of an API token.
type APITokenStatus struct {
	LastUsed *time.Time `json:"lastUsed" doc:"To the minute."`
}

// CreatedToken is an API token with its text, which is answered once.
type CreatedToken struct {
	Metadata Metadata       `json:"metadata"`
	Spec     APITokenSpec   `json:"spec"`
	Status   APITokenStatus `json:"status"`
	Token    string         `json:"token"`
}

// Credentials are exchanged for a session.
type Credentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// Session is what a login answers.
type Session struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expiresAt"`
	User      string    `json:"user"`
	Role      string    `json:"role" enum:"view,edit,admin"`
}

// Identity is who the caller is.
type Identity struct {
	User string `json:"user"`
	Role string `json:"role" enum:"view,edit,admin"`
	// Kind of the credential, and the name of the API token that it is.
	Kind      string    `json:"kind" enum:"session,token"`
	Token     string    `json:"token,omitempty"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// Users of the server.
func Users(c *Client) Collection[UserSpec, UserStatus] {
	return collection[UserSpec, UserStatus](c, KindUser, "")
}

// Tokens are the API tokens of a user. [Client.CreateToken] makes one.
func Tokens(c *Client, user string) Collection[APITokenSpec, APITokenStatus] {
	return collection[APITokenSpec, APITokenStatus](c, KindToken, user)
}
