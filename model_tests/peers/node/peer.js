// A real Node client that plays one story; the judgement is `real_clients.py`'s.
//
// Arguments and output as those of `java/Peer.java`; it plays "bulk" only.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

// The test has the same: a busy machine is no fault of a broker.
const PATIENCE_MS = 600_000;
const TAGS = ['red', 'green', 'blue'];
const [nameServer, topic, group, , count] = process.argv.slice(2);
const silent = { info() {}, warn() {}, debug() {}, error: console.error };
const options = {
  // Only asked for a name server's address, which is given.
  httpclient: { request: async () => { throw new Error('nothing is to be fetched'); } },
  nameSrv: nameServer,
  accessKeyId: 'none',
  accessKeySecret: 'none',
  logger: silent,
};

async function send() {
  const producer = new Producer({ ...options, producerGroup: `${group}-producer`, sendMsgTimeout: PATIENCE_MS });
  await producer.ready();
  for (let number = 0; number < Number(count); number++) {
    const message = new Message(topic, TAGS[number % TAGS.length], `message-${number}`);
    message.keys = [`key-${number}`];
    message.properties.number = String(number);
    const result = await producer.send(message);
    if (result.sendStatus !== 'SEND_OK') {
      throw new Error(result.sendStatus);
    }
  }
  await producer.close();
}

async function main() {
  await send();
  const consumer = new Consumer({
    ...options,
    consumerGroup: group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', error => console.error(error));
  consumer.subscribe(topic, '*', async message => {
    const keys = Array.isArray(message.keys) ? message.keys.join(' ') : message.keys;
    console.log(JSON.stringify([
      message.body.toString(), message.tags, keys, message.properties.number,
      message.queueId, Number(message.queueOffset), message.reconsumeTimes,
    ]));
  });
  await new Promise(resolve => process.stdin.resume().on('end', resolve));
  // A second copy of a message would come soon after the first.
  await new Promise(resolve => setTimeout(resolve, 300));
  await consumer.close();
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
