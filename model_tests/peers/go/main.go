// A real Go client that plays one story; the judgement is `real_clients.py`'s.
//
// Arguments and output as those of `java/Peer.java`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The test has the same: a busy machine is no fault of a broker.
const patience = 600 * time.Second

var tags = []string{"red", "green", "blue"}

// inTurn sends to all queues one after the other.
type inTurn struct {
	next int
}

func (turn *inTurn) Select(_ *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	turn.next++
	return queues[turn.next%len(queues)]
}

// inbox tells every consumed message. Changes under its lock.
type inbox struct {
	sync.Mutex
	putOff map[string]bool
}

func (box *inbox) tell(messages []*primitive.MessageExt) {
	box.Lock()
	defer box.Unlock()
	for _, message := range messages {
		line, err := json.Marshal([]any{
			string(message.Body), message.GetTags(), message.GetKeys(), message.GetProperty("number"),
			message.Queue.QueueId, message.QueueOffset, message.ReconsumeTimes,
		})
		check(err)
		fmt.Println(string(line))
	}
}

// isPutOff says once of each fiftieth message of a queue that it is to come again.
func (box *inbox) isPutOff(message *primitive.MessageExt) bool {
	box.Lock()
	defer box.Unlock()
	key := message.GetKeys()
	if message.QueueOffset%50 != 7 || box.putOff[key] {
		return false
	}
	box.putOff[key] = true
	return true
}

func main() {
	rlog.SetLogLevel("error")
	nameServer, topic, group, story, sql := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[6]
	count, err := strconv.Atoi(os.Args[5])
	check(err)
	credentials := primitive.Credentials{}
	if os.Args[7] != "-" {
		credentials = primitive.Credentials{AccessKey: os.Args[7], SecretKey: os.Args[8]}
	}
	resolver := primitive.NewPassthroughResolver([]string{nameServer})
	send(resolver, credentials, topic, group, count)

	box := &inbox{putOff: map[string]bool{}}
	options := []consumer.Option{
		consumer.WithGroupName(group),
		consumer.WithNsResolver(resolver),
		consumer.WithCredentials(credentials),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(story == "orderly"),
		consumer.WithSuspendCurrentQueueTimeMillis(10 * time.Millisecond),
		consumer.WithConsumeGoroutineNums(1),
	}
	if story == "retry" {
		options = append(options, consumer.WithMaxReconsumeTimes(2))
	}
	client, err := rocketmq.NewPushConsumer(options...)
	check(err)
	selector := consumer.MessageSelector{}
	if sql != "-" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	check(client.Subscribe(topic, selector,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			if story == "orderly" && box.isPutOff(messages[0]) {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			box.tell(messages)
			if story == "retry" {
				if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					concurrently.DelayLevelWhenNextConsume = 1
				}
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(client.Start())
	_, err = io.Copy(io.Discard, os.Stdin)
	check(err)
	// A second copy of a message would come soon after the first.
	time.Sleep(300 * time.Millisecond)
	check(client.Shutdown())
}

func send(resolver primitive.NsResolver, credentials primitive.Credentials, topic, group string, count int) {
	client, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver),
		producer.WithCredentials(credentials),
		producer.WithGroupName(group+"-producer"),
		producer.WithQueueSelector(&inTurn{}),
		producer.WithSendMsgTimeout(patience),
	)
	check(err)
	check(client.Start())
	for number := 0; number < count; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("message-%d", number)))
		message.WithTag(tags[number%len(tags)])
		message.WithKeys([]string{fmt.Sprintf("key-%d", number)})
		message.WithProperty("number", strconv.Itoa(number))
		result, err := client.SendSync(context.Background(), message)
		check(err)
		if result.Status != primitive.SendOK {
			panic(result.String())
		}
	}
	check(client.Shutdown())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
