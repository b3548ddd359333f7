// @stomp/stompjs over WebSocket. node stompjs.mjs URL text|binary; prints what it saw, a line each.
import { Client } from "@stomp/stompjs";
import WebSocket from "ws";

const [url, kind] = process.argv.slice(2);
Object.assign(globalThis, { WebSocket });
const say = (...words) => console.log(words.join(" "));
const client = new Client({
  brokerURL: url,
  connectHeaders: { "client-id": `stompjs-${kind}` },
  reconnectDelay: 200,
  forceBinaryWSFrames: kind === "binary",
  heartbeatIncoming: 1000,
  heartbeatOutgoing: 1000,
});
const receipt = (id) => new Promise((done) => client.watchForReceipt(id, done));
let connects = 0;

client.onStompError = (frame) => say("error", frame.headers.message, frame.headers["x-sluice-column"] ?? "");
client.onConnect = async () => {
  connects += 1;
  say("connected", client.connectedVersion);
  if (connects === 2) {
    // After the ERROR it is back by itself.
    await client.deactivate();
    say("bye");
    process.exit(0);
  }
  const topic = `/topic/js.${kind}`;
  const seen = [];
  const waits = [];
  const message = () => (seen.length ? Promise.resolve(seen.shift()) : new Promise((done) => waits.push(done)));
  const heard = (frame) => (waits.length ? waits.shift()(frame) : seen.push(frame));

  const plain = client.subscribe(topic, heard, { receipt: "subscribed", selector: "color = 'red'" });
  await receipt("subscribed");
  client.publish({ destination: topic, body: "blue", headers: { color: "blue" } });
  client.publish({ destination: topic, body: "gr\u00fcn\u0000", headers: { color: "red", "x-note": "c\nd\\", receipt: "sent" } });
  await receipt("sent");
  let frame = await message();
  say("message", JSON.stringify(frame.body), JSON.stringify(frame.headers["x-note"]), frame.headers.destination);
  plain.unsubscribe({ receipt: "over" });
  await receipt("over");

  const acked = client.subscribe(topic, heard, { ack: "client-individual", "prefetch-count": "1", "x-stream-offset": "first" });
  frame = await message();
  say("replayed", frame.body);
  frame.ack();
  frame = await message();
  frame.nack();
  acked.unsubscribe();

  const transaction = client.begin();
  client.subscribe(topic, heard, { id: "t" });
  client.publish({ destination: topic, body: "one", headers: { transaction: transaction.id } });
  client.publish({ destination: topic, body: "two", headers: { transaction: transaction.id } });
  transaction.commit();
  say("committed", (await message()).body, (await message()).body);

  await new Promise((done) => setTimeout(done, 2500));
  say("still", client.connected);
  client.subscribe(topic, heard, { selector: "color =" });
};
client.activate();
setTimeout(() => process.exit(1), 40000).unref();
