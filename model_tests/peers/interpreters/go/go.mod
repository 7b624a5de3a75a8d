module longpoll.example/law

go 1.21
