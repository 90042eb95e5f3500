// Streams one answer through a gateway on this host, with net/http alone. An interrupt cancels the request: the gateway
// then closes its connections to the replicas.
//
// OPENAI_BASE_URL (such as http://127.0.0.1:8080/v1), OPENAI_API_KEY and OPENAI_MODEL describe the gateway.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
)

type chunk struct {
	Choices []struct {
		Delta struct{ Content string }
	}
	Error *struct{ Message string }
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{
		"model":    os.Getenv("OPENAI_MODEL"),
		"stream":   true,
		"messages": []map[string]string{{"role": "user", "content": "Why is the slowest tenth of requests so slow?"}},
	})
	if err != nil {
		return err
	}
	url := os.Getenv("OPENAI_BASE_URL") + "/chat/completions"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("content-type", "application/json")
	request.Header.Set("authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway answered %s", response.Status)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20) // bytes of an event
	complete := false
	for lines.Scan() {
		data, found := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !found { // an empty line, or a comment
			continue
		}
		if string(data) == "[DONE]" {
			complete = true
			break
		}
		var event chunk
		if err := json.Unmarshal(data, &event); err != nil {
			return err
		}
		if event.Error != nil {
			return fmt.Errorf("the stream ended with an error: %s", event.Error.Message)
		}
		for _, choice := range event.Choices {
			fmt.Print(choice.Delta.Content)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !complete { // an end without [DONE] is a cut answer
		return fmt.Errorf("the stream ended without [DONE]")
	}
	fmt.Printf("\nreplica %s, %s\n", response.Header.Get("x-ttft-replica"), response.Header.Get("x-ttft-result"))
	return nil
}
