package tofu

import (
	"encoding/json"
	"os"
	"strings"
)

// Iterations of the state's key derivation: the fewest that OpenTofu takes. The passphrase is 256 random bits, which
// more rounds would not make harder to guess, and every tofu command pays for them.
const Iterations = 200000

// Encryption is the terraform.encryption block of a configuration: state and plan are encrypted or refused. The
// passphrase comes by the environment; in the configuration it is empty.
func Encryption(passphrase string) map[string]any {
	const method = "method.aes_gcm.state"
	key := map[string]any{"iterations": Iterations, "hash_function": "sha256"}
	if passphrase != "" {
		key["passphrase"] = passphrase
	}
	return map[string]any{
		"key_provider": map[string]any{"pbkdf2": map[string]any{"tenant": key}},
		"method":       map[string]any{"aes_gcm": map[string]any{"state": map[string]any{"keys": "${key_provider.pbkdf2.tenant}"}}},
		"state":        map[string]any{"method": method, "enforced": true},
		"plan":         map[string]any{"method": method, "enforced": true},
	}
}

// passed are the variables of our own environment that tofu and its providers get.
var passed = []string{
	"PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

func baseEnv() []string {
	env := []string{
		"TF_IN_AUTOMATION=1", "TF_INPUT=0", "CHECKPOINT_DISABLE=1",
		"TF_LOG=off", "TF_LOG_SDK=off", "TF_LOG_SDK_PROTO=off", "TF_LOG_SDK_FRAMEWORK=off",
	}
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// environment is tofu's whole environment for one run.
type environment struct {
	CLIConfig  string
	Backend    string // URL of the state
	Username   string
	Password   string
	Passphrase string
	Reattach   string // TF_REATTACH_PROVIDERS, or ""
}

func (e environment) list() []string {
	enc, err := json.Marshal(Encryption(e.Passphrase))
	if err != nil {
		panic("encode the encryption block: " + err.Error())
	}
	env := append(baseEnv(),
		"TF_CLI_CONFIG_FILE="+e.CLIConfig,
		"TF_HTTP_ADDRESS="+e.Backend,
		"TF_HTTP_LOCK_ADDRESS="+e.Backend+"/lock",
		"TF_HTTP_UNLOCK_ADDRESS="+e.Backend+"/lock",
		"TF_HTTP_USERNAME="+e.Username,
		"TF_HTTP_PASSWORD="+e.Password,
		"TF_HTTP_RETRY_MAX=3",
		"TF_HTTP_RETRY_WAIT_MIN=1",
		"TF_HTTP_RETRY_WAIT_MAX=2",
		"TF_ENCRYPTION="+string(enc),
	)
	if e.Reattach != "" {
		env = append(env, "TF_REATTACH_PROVIDERS="+e.Reattach)
	}
	// Loopback never goes through a proxy.
	return append(env, "NO_PROXY="+strings.TrimPrefix(os.Getenv("NO_PROXY")+",127.0.0.1,localhost", ","))
}
